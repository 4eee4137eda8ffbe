from __future__ import annotations

from controllers.autoscaling import Observation
from controllers.autoscaling_record import MAX_MS, record_of
from tests.autoscaling_rig import SETTINGS, Fleet, busy, report


def seen(target: int, num_running: int) -> Observation:
    reports = {f"r{number}": report() for number in range(num_running)}
    return Observation(target, num_running, reports, 0.0, 1, 8)


def test_it_says_what_was_decided_and_by_what() -> None:
    verdict = Fleet(1).see(
        report(tiers={"interactive": busy(2.5, num_ttft=20.0, num_ttft_missed=5.0)})
    )
    record = record_of(verdict, seen(1, 1), SETTINGS, "Executor", 7)
    said = (record.action, record.old_target_replicas, record.target_replicas, record.reason)
    assert said == ("up", 1, 3, "ttft")
    assert (record.ts_ms, record.deployment, record.num_known) == (7, "Executor", 1)
    assert (record.demand, record.requests_per_s, record.tier) == (2.5, 25.0, "interactive")
    assert (record.ttft_slo_ms, record.ttft_missed_share, record.itl_missed_share) == (
        2000.0,
        0.25,
        None,
    )
    assert record.predicted_ttft_ms == MAX_MS  # JSON has no infinity
    assert record.new_predicted_ttft_ms is not None
    assert record.new_predicted_ttft_ms < 2000.0


def test_what_is_not_known_is_null() -> None:
    verdict = Fleet(2).see(num_running=2)
    record = record_of(verdict, seen(2, 0), SETTINGS, "Executor", 7)
    assert (record.reason, record.tier, record.hit_rate, record.predicted_ttft_ms) == (
        "no figures",
        None,
        None,
        None,
    )
