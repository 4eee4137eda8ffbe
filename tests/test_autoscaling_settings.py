from __future__ import annotations

from typing import Any

import pytest

from controllers.autoscaling_settings import AutoscalingSettings
from controllers.errors import SettingsError


def test_the_defaults_are_lawful() -> None:
    AutoscalingSettings().check()


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"min_replicas": 5, "max_replicas": 4}, "autoscaling.max_replicas"),
        ({"slo_share": 0.5, "consolidation_share": 0.5}, "autoscaling.consolidation_share"),
        ({"window_s": 200.0}, "autoscaling.down_settle_s"),
    ],
)
def test_what_would_make_replicas_come_and_go_is_refused(values: dict[str, Any], path: str) -> None:
    with pytest.raises(SettingsError, match=path):
        AutoscalingSettings(**values).check()
