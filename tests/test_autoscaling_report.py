from __future__ import annotations

import json
import math

import msgspec
import pytest

from controllers.autoscaling_report import figures_of, report_of, settings_of
from controllers.autoscaling_settings import AutoscalingSettings
from tests.autoscaling_rig import SETTINGS, report, tier

FULL = report(
    tiers={"interactive": tier(), "a/b": tier(rank=3, num_ttft=4.0, num_ttft_missed=1.0)},
    sample=(1.0, 2.0, 2.0**47, 0.0),
    used_blocks=10,
)


def test_a_report_and_the_settings_survive_as_plain_numbers() -> None:
    settings = msgspec.structs.replace(SETTINGS, advisory=True, max_replicas=17, window_s=12.5)
    figures = figures_of(FULL, settings)
    assert all(isinstance(value, float) for value in figures.values())
    figures = json.loads(json.dumps(figures))
    assert report_of(figures) == FULL
    assert settings_of(figures) == settings


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 1e300, None, "7"])
@pytest.mark.parametrize("name", ["used_blocks", "tier/interactive/backlog_ms", "sample/1"])
def test_one_impossible_figure_and_nothing_is_believed(name: str, bad: object) -> None:
    figures: dict[str, object] = dict(figures_of(FULL, SETTINGS))
    assert report_of({**figures, name: bad}) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("used_blocks", 1001.0),
        ("prefill_busy", 1.1),
        ("max_running", 0.0),
        ("tier/a/b/num_ttft_missed", 5.0),
    ],
)
def test_figures_that_contradict_each_other_are_not_believed(name: str, value: float) -> None:
    assert report_of({**figures_of(FULL, SETTINGS), name: value}) is None


def test_a_missing_figure_is_impossible_and_one_of_a_newer_version_is_passed_over() -> None:
    figures = figures_of(FULL, SETTINGS)
    assert report_of({n: v for n, v in figures.items() if n != "total_blocks"}) is None
    assert report_of({**figures, "invented": 3.0, "running_requests": 1.0}) == FULL
    assert report_of({}) is None


def test_settings_of_another_version() -> None:
    figures = figures_of(FULL, SETTINGS)
    assert settings_of({n: v for n, v in figures.items() if not n.startswith("settings/")}) is None
    del figures["settings/slo_share"]
    figures["settings/invented"] = 1.0
    assert settings_of(figures) == msgspec.structs.replace(
        SETTINGS, slo_share=AutoscalingSettings().slo_share
    )
    assert settings_of({**figures, "settings/max_replicas": math.nan}) is None
    assert settings_of({**figures, "settings/slo_quantile": 7.0}) is None
