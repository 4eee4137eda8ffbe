"""Tiers by request type, and what their settings refuse."""

from __future__ import annotations

import msgspec
import pytest

from controllers.errors import SettingsError
from controllers.service_tiers import TierPolicy, TierRule


def test_built_in_tiers_by_request_type() -> None:
    policy = TierPolicy()
    types = ("system", "interactive", "agent", "oneoff", "batch", "of my own")
    assert [policy.rules[policy.tier_of(name)].rank for name in types] == [0, 0, 1, 1, 2, 1]


def test_what_is_given_replaces_or_joins() -> None:
    policy = TierPolicy(
        default="night",
        rules={"night": TierRule(rank=9), "batch": TierRule(rank=5)},
        request_types={"agent": "batch"},
    )
    assert sorted(policy.rules) == ["batch", "interactive", "night", "standard"]
    assert (policy.tier_of("agent"), policy.tier_of("report")) == ("batch", "night")
    assert policy.rule("batch").rank == 5
    assert policy.rule("gone since").rank == 9


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            TierPolicy(default="nobody"),
            "tiers.default: 'nobody' is none of ['batch', 'interactive', 'standard']",
        ),
        (
            TierPolicy(request_types={"agent": "gold"}),
            "tiers.request_types.agent: 'gold' is none of ['batch', 'interactive', 'standard']",
        ),
    ],
)
def test_a_tier_without_a_rule(policy: TierPolicy, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        policy.check()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "values", [{"rank": -1}, {"ttft_slo_ms": 0}, {"max_ttft_ms": -1}, {"speed": 1}]
)
def test_bad_rules(values: dict[str, float]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"rules": {"batch": values}}, TierPolicy)
