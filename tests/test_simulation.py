"""The simulated fleet: nothing is lost, the same seed gives the same bytes, faults cost little."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import numpy as np
import pytest

from controllers.errors import InvalidRequest, SettingsError
from controllers.placement import PlacementSettings
from controllers.retention import RetentionPolicy
from controllers.simulation.fleet import Fleet
from controllers.simulation.peers import PEERS
from controllers.simulation.settings import FleetSettings, Outage
from controllers.simulation.trace import Row, read_rows
from tests.simulation_rig import check_whole, sessions, simulated, trace_of

SLICE = Path(__file__).parent / "data" / "traces" / "mooncake_synthetic_300.jsonl.gz"
ROWS = sessions()
ROUTERS = ("cachelane", *PEERS)


@pytest.mark.parametrize("router", ROUTERS)
def test_no_request_and_no_block_is_lost(router: str) -> None:
    run = simulated(ROWS, router)
    check_whole(run, len(ROWS))
    trace = trace_of(ROWS)
    assert run.report.num_asked_blocks == sum(r.num_blocks for r in trace.requests)
    num_tokens = sum(request.num_tokens for request in trace.requests)
    assert run.report.reuse == pytest.approx(run.cached_tokens.sum() / num_tokens)
    assert run.cached_tokens.sum() == 32 * run.report.num_hit_blocks
    assert set(run.worker.tolist()) <= {0, 1, 2, 3}


@pytest.mark.parametrize("router", ["cachelane", "dynamo_tuned"])
def test_the_same_seed_gives_the_same_bytes(router: str) -> None:
    faults = {"event_lag_s": 0.05, "event_loss": 0.02, "num_routers": 2}
    first, again, other = (
        msgspec.json.encode(simulated(ROWS, router, seed=seed, **faults).report)
        for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


def test_routing_by_prefix_beats_taking_turns_on_a_real_trace() -> None:
    rows = read_rows(gzip.decompress(SLICE.read_bytes()).splitlines(), SLICE.name)
    settings = FleetSettings(num_workers=4, num_blocks=16_384, speedup=2.0)
    own, turns = (
        Fleet(trace_of(rows), settings, router).run().report
        for router in ("cachelane", "round_robin")
    )
    assert own.num_requests == 300
    assert own.reuse > 1.5 * turns.reuse
    assert own.ttft_ms.mean < 0.9 * turns.ttft_ms.mean
    assert own.busiest_over_mean < 1.3


def test_late_events_cost_little() -> None:
    clean, late = (simulated(ROWS, event_lag_s=lag).report for lag in (0.0, 1.0))
    assert late.num_stale == 0
    assert late.reuse == pytest.approx(clean.reuse, abs=0.03)
    assert late.ttft_ms.mean < 1.1 * clean.ttft_ms.mean


def test_lost_records_are_noticed_and_repaired() -> None:
    clean, lossy = (simulated(ROWS, event_loss=loss).report for loss in (0.0, 0.02))
    assert clean.num_lost_records == clean.num_stale == 0
    assert 0 < lossy.num_stale <= lossy.num_lost_records
    assert lossy.reuse == pytest.approx(clean.reuse, abs=0.03)


@pytest.mark.parametrize("router", ["cachelane", "least_requests"])
def test_requests_of_a_dead_worker_run_elsewhere(router: str) -> None:
    run = simulated(ROWS, router, outages=(Outage(2, 8.0),), event_lag_s=0.02)
    check_whole(run, len(ROWS))
    assert run.report.num_rerun > 0
    is_later = run.arrival_ms > 8000.0
    assert is_later.any()
    assert 2 not in run.worker[is_later]
    assert 2 in run.worker[~is_later]


def test_a_worker_that_comes_back_has_nothing_and_is_used_again() -> None:
    run = simulated(ROWS, outages=(Outage(2, 5.0, 8.0),))
    check_whole(run, len(ROWS))
    gone = (run.arrival_ms > 5000.0) & (run.arrival_ms < 8000.0)
    assert 2 not in run.worker[gone]
    assert 2 in run.worker[run.arrival_ms > 8000.0]
    assert run.report.num_stale == 0


def test_requests_wait_while_every_worker_is_gone() -> None:
    run = simulated(ROWS, num_workers=1, outages=(Outage(0, 2.0, 30.0),))
    check_whole(run, len(ROWS))
    waited = (run.arrival_ms > 2000.0) & (run.arrival_ms < 30_000.0)
    assert (run.first_token_ms[waited] > 30_000.0).all()


def test_a_fleet_that_is_gone_for_ever_is_an_error() -> None:
    with pytest.raises(SettingsError, match="every worker is gone for ever"):
        simulated(ROWS, num_workers=1, outages=(Outage(0, 2.0),))


def test_more_cache_never_means_less_reuse() -> None:
    reuse = [
        simulated(ROWS, "round_robin", num_workers=2, num_blocks=num).report.reuse
        for num in (600, 1000, 2000, 4000, 16_000)
    ]
    assert reuse == sorted(reuse)
    assert reuse[0] < reuse[-1]


def test_more_workers_mean_shorter_times() -> None:
    ttft = [simulated(ROWS, num_workers=num).report.ttft_ms.mean for num in (1, 2, 4)]
    assert ttft == sorted(ttft, reverse=True)


def test_what_leaves_the_gpu_is_found_on_the_host() -> None:
    without, with_host = (
        simulated(ROWS, num_workers=1, num_blocks=800, num_host_blocks=num).report
        for num in (0, 8000)
    )
    assert with_host.reuse > without.reuse + 0.1


def test_a_slow_worker_gets_less_to_do() -> None:
    run = simulated(sessions(80), slowness={0: 4.0})
    counts = np.bincount(run.worker, minlength=4)
    assert counts[0] < counts[1:].min()


def test_a_worker_with_less_cache_evicts_more() -> None:
    even, uneven = (
        simulated(ROWS, "round_robin", blocks_of=blocks_of).report for blocks_of in ({}, {0: 500})
    )
    assert uneven.reuse < even.reuse


def test_several_routers_share_the_requests() -> None:
    run = simulated(ROWS, num_routers=4)
    check_whole(run, len(ROWS))


def test_what_a_gate_hands_back_is_served_elsewhere_and_sooner() -> None:
    """Bursts of sixteen prompts that have nothing in common, two from each router."""
    rows = [
        Row(1000.0 * burst, 512 * 9, 20, [9 * (16 * burst + i) + at for at in range(9)])
        for burst in range(12)
        for i in range(16)
    ]
    run, settled = (
        simulated(
            rows,
            num_routers=8,
            num_workers=8,
            routing=PlacementSettings(max_handbacks=most),
        )
        for most in (2, 0)
    )
    check_whole(run, len(rows))
    check_whole(settled, len(rows))
    assert run.report.ttft_ms.mean < settled.report.ttft_ms.mean


def test_one_router_is_handed_nothing_back() -> None:
    reports = [
        msgspec.json.encode(simulated(ROWS, routing=PlacementSettings(max_handbacks=most)).report)
        for most in (0, 2)
    ]
    assert reports[0] == reports[1]


def test_retention_keeps_what_it_is_told_to() -> None:
    """Chats that come back after a flood of one-off prompts."""
    ids = [[100 * chat + i for i in range(4)] for chat in range(10)]
    chats = [Row(100.0 * i, 2048, 5, own) for i, own in enumerate(ids)]
    flood = [
        Row(2000.0 + 50.0 * i, 2048, 5, [10_000 + 10 * i + j for j in range(4)], "oneoff")
        for i in range(40)
    ]
    back = [Row(10_000.0 + 100.0 * i, 2048, 5, own) for i, own in enumerate(ids)]
    rows = [*chats, *flood, *back]
    fleet = {"num_workers": 1, "num_blocks": 1200}
    lru, kept = (simulated(rows, retention=policy, **fleet) for policy in (None, RetentionPolicy()))
    assert lru.cached_tokens[-10:].sum() == 0
    assert kept.cached_tokens[-10:].sum() == 10 * 2048


def test_an_unknown_request_type_is_refused_before_the_run() -> None:
    with pytest.raises(InvalidRequest, match="'poem' is none of"):
        simulated([Row(0, 10, 1, [], "poem")], retention=RetentionPolicy())


def test_settings_of_routing_apply() -> None:
    turns = PlacementSettings(policy="round_robin")
    run = simulated(ROWS, routing=turns)
    assert run.worker[:6].tolist() == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_workers": 0}, "num_workers is 0"),
        ({"speedup": float("inf")}, "speedup is inf"),
        ({"event_loss": 1.0}, "event_loss is 1.0"),
        ({"jitter": -0.1}, "jitter is -0.1"),
        ({"slowness": {4: 2.0}}, "slowness: worker 4 is none of 0 ... 3"),
        ({"slowness": {0: 0.0}}, "slowness of worker 0 is 0.0"),
        ({"blocks_of": {0: -5}}, "blocks_of of worker 0 is -5"),
        ({"outages": (Outage(0, 5.0, 4.0),)}, "outages: back_s is 4.0"),
        ({"outages": (Outage(0, 5.0), Outage(0, 6.0, 9.0))}, "is gone from 5 s on already"),
        ({"outages": (Outage(1, 7.0, 9.0), Outage(1, 5.0, 7.0))}, "worker 1 is to die at 7 s"),
        ({"max_batched_tokens": 256}, "max_batched_tokens is 256"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        simulated(ROWS[:1], **settings)


def test_progress_is_told() -> None:
    told: list[int] = []
    Fleet(trace_of(ROWS), FleetSettings(num_workers=2), "round_robin").run(told.append)
    assert told == sorted(told)
    assert told[0] >= 100
