"""How many replicas there shall be, and which of them go, by what was seen last."""

from __future__ import annotations

import msgspec

from controllers.autoscaling import Observation
from controllers.autoscaling_report import ReplicaReport
from controllers.scaled_fleet import ScaledFleet
from tests.autoscaling_rig import SETTINGS, busy, report

BUSY = report(tiers={"interactive": busy(2.5)})
COLD = report(tiers={})
WARM = report(tiers={}, content_tokens=500.0)


def seen(target: int, **reports: ReplicaReport) -> Observation:
    return Observation(target, len(reports), reports, 0.0, 1, 8)


def test_the_policy_is_followed() -> None:
    decided = ScaledFleet().decide(seen(1, a=BUSY), SETTINGS, 100.0)
    assert (decided.target, decided.verdict.target, decided.verdict.action) == (3, 3, "up")


def test_advice_is_not_followed_but_bounds_are() -> None:
    advisory = msgspec.structs.replace(SETTINGS, advisory=True)
    decided = ScaledFleet().decide(seen(1, a=BUSY), advisory, 100.0)
    assert (decided.target, decided.verdict.target) == (1, 3)
    decided = ScaledFleet().decide(seen(9, a=BUSY), advisory, 100.0)
    assert (decided.target, decided.verdict.reason) == (8, "bounds")


def test_the_coldest_go_of_those_that_run() -> None:
    fleet = ScaledFleet()
    fleet.decide(seen(3, a=WARM, b=COLD, c=COLD), SETTINGS, 100.0)
    assert fleet.victims(["a", "b", "c"], 2) == ["b", "c"]
    assert fleet.victims(["a", "c"], 1) == ["c"]
    assert fleet.victims(["a"], 0) == []


def test_others_choose_if_one_is_not_known_or_the_settings_say_so() -> None:
    fleet = ScaledFleet()
    assert fleet.victims([], 0) is None  # nothing was seen yet
    fleet.decide(seen(2, a=WARM, b=COLD), SETTINGS, 100.0)
    assert fleet.victims(["a", "b", "new"], 1) is None
    fleet.decide(seen(1, b=COLD), SETTINGS, 101.0)
    assert fleet.victims(["a", "b"], 1) is None  # its report is too old
    newest = msgspec.structs.replace(SETTINGS, coldest_first=False)
    fleet.decide(seen(2, a=WARM, b=COLD), newest, 102.0)
    assert fleet.victims(["a", "b"], 1) is None
