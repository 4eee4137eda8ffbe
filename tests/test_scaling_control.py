from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from controllers.autoscaling_report import ReplicaReport, figures_of
from controllers.autoscaling_settings import AutoscalingSettings
from controllers.records import ScalingDecision
from infra.event_bus_memory import MemoryBus
from serve_app.scaling_control import Figures, ScalingControl, Tick
from tests.autoscaling_rig import SETTINGS, busy, report

BUSY = report(tiers={"interactive": busy(2.5)})
IDLE = report(tiers={})


class Rig:
    """A control loop whose clock is moved by hand; every replica reports each time."""

    def __init__(self, settings: AutoscalingSettings = SETTINGS, target: int = 1) -> None:
        self.bus = MemoryBus()
        self.now = 100.0
        self.target = target
        self.settings = settings
        self.num_asked = 0
        self.control = ScalingControl(self.bus.producer(), self.bus.topics, lambda: self.now)

    def tick(self, reports: dict[str, ReplicaReport], **changes: Any) -> int:
        self.now += 1.0
        figures = {
            name: Figures(figures_of(one, self.settings), 7000.0 + self.now)
            for name, one in reports.items()
        }
        return self.tick_with(figures, **changes)

    def tick_with(self, figures: dict[str, Figures], **changes: Any) -> int:
        def ask() -> dict[str, Figures]:
            self.num_asked += 1
            return figures

        tick = Tick("Executor", self.target, list(figures), ask, lambda: 0.0, 1, 8)
        self.target = self.control.target(tick._replace(**changes))
        return self.target

    def records(self) -> list[ScalingDecision]:
        found = self.bus.reader(self.bus.topics.scaling).poll(0)
        return [msgspec.json.decode(record.value, type=ScalingDecision) for record in found]


def test_it_decides_by_what_replicas_report_and_says_so() -> None:
    rig = Rig()
    assert rig.tick({"a": BUSY}) == 3
    (record,) = rig.records()
    said = (record.action, record.old_target_replicas, record.target_replicas, record.reason)
    assert said == ("up", 1, 3, "ttft")
    assert (record.deployment, record.num_known, record.is_advisory) == ("Executor", 1, False)


def test_between_two_decisions_it_asks_for_nothing() -> None:
    rig = Rig()
    rig.tick({"a": IDLE})
    for _ in range(9):
        rig.now += 0.1
        rig.tick_with({"a": Figures(figures_of(BUSY, SETTINGS), 1.0)})
    assert (rig.num_asked, rig.target) == (1, 1)


def test_nothing_is_decided_before_the_settings_are_known() -> None:
    rig = Rig(target=2)
    assert rig.tick({}) == 2
    assert rig.tick_with({"a": Figures({}, 1.0)}) == 2
    assert rig.records() == []


def test_advice_is_only_recorded() -> None:
    rig = Rig(msgspec.structs.replace(SETTINGS, advisory=True))
    for _ in range(3):
        assert rig.tick({"a": BUSY}) == 1
    records = rig.records()
    assert [(r.action, r.target_replicas, r.is_advisory) for r in records] == [("up", 3, True)]


def test_impossible_and_stale_figures_decide_nothing() -> None:
    rig = Rig()
    bad = {**figures_of(BUSY, SETTINGS), "used_blocks": math.nan}
    assert rig.tick_with({"a": Figures(bad, 1.0)}) == 1
    old = Figures(figures_of(BUSY, SETTINGS), 55.0)  # of another machine's clock
    rig = Rig(msgspec.structs.replace(SETTINGS, up_cooldown_s=1000.0))
    rig.tick_with({"a": old})
    assert rig.target == 3  # fresh when first seen
    rig.target = 1
    rig.now += 2000.0
    assert rig.tick_with({"a": old}) == 1


def test_what_changes_nothing_is_recorded_now_and_then() -> None:
    rig = Rig(msgspec.structs.replace(SETTINGS, record_interval_s=10.0))
    for _ in range(25):
        rig.tick({"a": IDLE})
    assert [record.action for record in rig.records()] == ["hold", "hold", "hold"]


def test_what_serve_decides_by_itself_is_recorded_too() -> None:
    """It starts the first replica after none."""
    rig = Rig()
    rig.tick({"a": IDLE})
    rig.target = 2
    rig.tick({"a": IDLE})
    last = rig.records()[-1]
    assert (last.action, last.old_target_replicas, last.target_replicas) == ("up", 1, 2)
    assert last.reason == "set by Ray Serve"


def test_records_that_the_bus_does_not_take_are_counted_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    rig.control.close()
    assert rig.tick({"a": BUSY}) == 3
    assert (rig.control.num_dropped, rig.records()) == (1, [])
    assert "1 scaling records did not reach the bus" in caplog.text


def test_the_coldest_replica_is_named() -> None:
    rig = Rig(target=2)
    warm = report(tiers={}, content_tokens=500.0)
    rig.tick({"a": warm, "b": IDLE})
    assert rig.control.victims(["a", "b"], 1) == ["b"]
    assert rig.control.victims(["a", "b", "unknown"], 1) is None


def test_serve_chooses_if_it_is_told_to() -> None:
    rig = Rig(msgspec.structs.replace(SETTINGS, coldest_first=False), target=2)
    assert rig.control.victims(["a"], 1) is None
    rig.tick({"a": IDLE, "b": IDLE})
    assert rig.control.victims(["a", "b"], 1) is None


def test_changed_settings_count_from_the_next_report_on() -> None:
    rig = Rig()
    rig.tick({"a": IDLE})
    rig.settings = msgspec.structs.replace(SETTINGS, coldest_first=False)
    rig.tick({"a": IDLE})
    assert rig.control.victims(["a"], 1) is None
