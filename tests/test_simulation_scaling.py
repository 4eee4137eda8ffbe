"""A simulated fleet that grows and shrinks: nothing is lost by it, and it costs what it says."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from controllers.admission import AdmissionSettings
from controllers.autoscaling_settings import AutoscalingSettings
from controllers.errors import SettingsError
from controllers.fair_queue import Bounds
from controllers.retention import RetentionPolicy
from controllers.service_tiers import TierPolicy, TierRule
from controllers.simulation.result import Report, Run, ScalingReport
from controllers.simulation.settings import Outage
from controllers.simulation.timing import TimingCurve
from controllers.simulation.trace import Row
from tests.simulation_rig import sessions, simulated

SLOW = TimingCurve(prefill=(100.0, 800.0, 0.0), decode=(20.0, 20.0, 0.0))
POLICY = AutoscalingSettings(
    enabled=True,
    min_replicas=1,
    max_replicas=6,
    window_s=10.0,
    down_settle_s=10.0,
    down_cooldown_s=5.0,
    up_cooldown_s=5.0,
    lookahead_s=0.0,
    cold_start_s=0.0,
)


def rows_at(times_s: list[float], output_tokens: int = 20) -> list[Row]:
    """Prompts of 4,096 tokens with nothing in common, half a second each on the slow engine."""
    return [
        Row(1e3 * at, 4096, output_tokens, [100 * i + j for j in range(8)])
        for i, at in enumerate(times_s)
    ]


def hill(output_tokens: int = 20) -> list[Row]:
    """Half a minute with a quarter of a worker's work, then with two, a minute with a quarter."""
    quiet, busy = [2.0 * at for at in range(15)], [30 + at / 4 for at in range(120)]
    return rows_at([*quiet, *busy, *[60.0 + 2 * at for at in range(30)]], output_tokens)


def scaled(rows: list[Row], router: str = "cachelane", **settings: object) -> Run:
    """On slow engines, which start in 5 s."""
    chosen = {"autoscaling": POLICY, "start_s": 5.0, "curve": SLOW, "jitter": 0.0}
    return simulated(rows, router, **(chosen | settings))


def scaling_of(report: Report) -> ScalingReport:
    assert report.scaling is not None
    return report.scaling


def check_whole(run: Run, num_requests: int) -> None:
    """Every request was served, and every block asked for was found or computed."""
    assert run.report.num_requests == num_requests == len(run.end_ms)
    assert np.isfinite(run.end_ms).all()
    assert (run.end_ms >= run.first_token_ms).all()
    assert (run.first_token_ms > run.arrival_ms).all()
    report = run.report
    assert report.num_hit_blocks + report.num_missed_blocks == report.num_asked_blocks


@pytest.mark.parametrize("router", ["cachelane", "dynamo_tuned", "round_robin"])
def test_it_grows_with_the_work_and_shrinks_again(router: str) -> None:
    rows = hill()
    run = scaled(rows, router)
    check_whole(run, len(rows))
    told = scaling_of(run.report)
    assert run.report.num_rerun == 0
    assert 3 <= told.most_workers <= 6
    assert told.num_ups >= 1
    assert told.num_downs >= 1
    assert told.mean_workers == pytest.approx(told.worker_s / run.report.duration_s)
    assert 1.0 < told.mean_workers < told.most_workers
    is_late = run.arrival_ms > 100_000.0
    assert len(set(run.worker[is_late].tolist())) < told.most_workers


def test_more_work_takes_more_workers_and_is_served_as_one_fleet_of_all_would() -> None:
    rows = hill()
    few, grown, all_at_once = (
        scaled(
            rows,
            "llmd",
            autoscaling=msgspec.structs.replace(POLICY, min_replicas=a, max_replicas=b),
        )
        for a, b in ((1, 1), (1, 6), (6, 6))
    )
    ttft = [run.report.ttft_ms.mean for run in (all_at_once, grown, few)]
    assert ttft == sorted(ttft)
    cost = [scaling_of(run.report).worker_s for run in (few, grown, all_at_once)]
    assert cost[1] < 0.6 * cost[2]
    assert cost[2] == pytest.approx(6 * all_at_once.report.duration_s)
    assert cost[0] == pytest.approx(few.report.duration_s)


@pytest.mark.parametrize("router", ["cachelane", "dynamo_tuned"])
def test_the_same_seed_gives_the_same_bytes(router: str) -> None:
    rows = hill()[:110]
    faults = {"event_lag_s": 0.05, "event_loss": 0.02, "num_routers": 2, "jitter": 0.01}
    first, again, other = (
        msgspec.json.encode(scaled(rows, router, seed=seed, **faults).report) for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


def test_several_routers_and_a_lossy_log_lose_no_request() -> None:
    rows = hill()
    run = scaled(rows, num_routers=3, event_lag_s=0.2, event_loss=0.02, num_host_blocks=500)
    check_whole(run, len(rows))
    assert scaling_of(run.report).num_downs >= 1


def test_answered_and_refused_are_all_while_workers_come_and_go() -> None:
    rows = hill()
    run = scaled(
        rows,
        num_routers=2,
        event_lag_s=0.05,
        event_loss=0.01,
        outages=(Outage(1, 55.0),),
        retention=RetentionPolicy(policy="learned"),
        tiers=TierPolicy(rules={"interactive": TierRule(ttft_slo_ms=2000.0, max_ttft_ms=4000.0)}),
        admission=AdmissionSettings(max_waiting_requests=10),
        gate_bounds=Bounds(2),
    )
    report = run.report
    told = scaling_of(report)
    assert 0 < report.num_refused == run.is_refused.sum() < len(rows)
    assert np.isfinite(run.end_ms[~run.is_refused]).all()
    assert np.isnan(run.first_token_ms[run.is_refused]).all()
    assert report.num_hit_blocks + report.num_missed_blocks == report.num_asked_blocks
    assert told.num_downs >= 1
    in_time = (run.first_token_ms - run.arrival_ms) <= 2000.0
    assert told.ttft_met == in_time.mean()


@pytest.mark.parametrize("router", ["cachelane", "llmd"])
def test_bounds_that_leave_no_choice_give_the_figures_of_a_fixed_fleet(router: str) -> None:
    rows = sessions(20)
    fixed = simulated(rows, router).report
    policy = msgspec.structs.replace(POLICY, min_replicas=4, max_replicas=4)
    bound = simulated(rows, router, autoscaling=policy).report
    assert fixed.scaling is None
    told = scaling_of(bound)
    assert (told.num_ups, told.num_downs, told.most_workers) == (0, 0, 4)
    assert told.worker_s == pytest.approx(4 * fixed.duration_s)
    assert told.mean_workers == pytest.approx(4.0)
    assert bound.busiest_over_mean == pytest.approx(fixed.busiest_over_mean)
    assert fixed == msgspec.structs.replace(
        bound, scaling=None, busiest_over_mean=fixed.busiest_over_mean
    )


def test_a_dead_worker_is_replaced_by_another_one() -> None:
    rows = rows_at([at / 2 for at in range(80)], output_tokens=100)
    policy = msgspec.structs.replace(POLICY, min_replicas=2, max_replicas=2)
    run = scaled(rows, autoscaling=policy, outages=(Outage(0, 20.2),))
    check_whole(run, len(rows))
    assert run.report.num_rerun > 0
    is_alone = (run.arrival_ms > 20_200.0) & (run.arrival_ms < 22_000.0)
    assert set(run.worker[is_alone].tolist()) == {1}
    assert set(run.worker[run.arrival_ms > 28_000.0].tolist()) == {1, 2}
    told = scaling_of(run.report)
    assert (told.num_ups, told.num_downs, told.most_workers) == (0, 0, 2)
    gap_s = 21.0 - 20.2  # until the next decision
    assert told.worker_s == pytest.approx(2 * run.report.duration_s - gap_s)


def test_requests_wait_for_the_replacement_of_the_only_worker() -> None:
    rows = rows_at([float(at) for at in range(40)])
    run = scaled(rows, outages=(Outage(0, 20.2), Outage(7, 21.0)))
    check_whole(run, len(rows))
    waited = (run.arrival_ms > 20_200.0) & (run.arrival_ms < 26_000.0)
    assert waited.any()
    assert (run.first_token_ms[waited] > 26_000.0).all()  # 21 s, and the start


def test_without_work_there_may_be_no_worker() -> None:
    rows = rows_at([0.0, 100.0])
    policy = msgspec.structs.replace(POLICY, min_replicas=0, zero_after_s=20.0)
    run = scaled(rows, autoscaling=policy, start_s=7.0)
    check_whole(run, 2)
    assert run.first_token_ms[0] == pytest.approx(1000.0 + 7000.0 + 500.0, abs=50.0)
    assert run.first_token_ms[1] > 107_000.0
    assert run.worker.tolist() == [0, 1]
    told = scaling_of(run.report)
    assert (told.num_ups, told.num_downs, told.most_workers) == (2, 1, 1)
    assert told.worker_s < 60.0


def test_advice_changes_nothing() -> None:
    run = scaled(hill()[:40], autoscaling=msgspec.structs.replace(POLICY, advisory=True))
    told = scaling_of(run.report)
    assert (told.num_ups, told.num_downs, told.most_workers) == (0, 0, 1)


def test_workers_that_come_later_may_be_slow_or_small() -> None:
    rows = hill()
    even, uneven = (scaled(rows, "llmd", slowness=slow) for slow in ({}, {1: 5.0, 2: 5.0}))
    check_whole(uneven, len(rows))
    assert uneven.report.ttft_ms.mean > even.report.ttft_ms.mean


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"outages": (Outage(0, 5.0, 9.0),)}, "outages: back_s is 9.0: with autoscaling"),
        ({"start_s": -1.0}, "start_s is -1.0"),
        ({"slowness": {-1: 2.0}}, "worker -1 is"),
        (
            {"autoscaling": AutoscalingSettings(min_replicas=9)},
            "autoscaling.max_replicas: 4 must be at least",
        ),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        scaled(hill()[:1], **settings)
