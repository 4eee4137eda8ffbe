"""Tiers, tenants, bounds and deadlines in the simulated fleet: who is refused, and who is not."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from controllers.admission import AdmissionSettings
from controllers.errors import SettingsError
from controllers.fair_queue import Bounds
from controllers.placement import PlacementSettings
from controllers.rate_limits import TenantLimits
from controllers.retention import RetentionPolicy
from controllers.service_tiers import TierPolicy, TierRule
from controllers.simulation.result import PartReport, Run, Spread
from controllers.simulation.settings import Outage
from controllers.simulation.trace import TRACE_BLOCK, Row
from tests.simulation_rig import sessions, simulated

TIERS = ("interactive", "standard", "batch")


def mixed(num_sessions: int = 60) -> list[Row]:
    """Sessions of two tenants and all tiers."""
    return [
        msgspec.structs.replace(row, tenant=f"t{number % 2}", tier=TIERS[number % 3])
        for number, row in enumerate(sessions(num_sessions))
    ]


def burst(
    num: int,
    tokens: int = 8 * TRACE_BLOCK,
    at_ms: float = 0.0,
    first_id: int = 0,
    **fields: Any,
) -> list[Row]:
    """Prompts that have nothing in common, 1 ms apart."""
    num_ids = tokens // TRACE_BLOCK
    return [
        Row(
            at_ms + number,
            tokens,
            20,
            [first_id + number * num_ids + index for index in range(num_ids)],
            **fields,
        )
        for number in range(num)
    ]


def check_conserved(run: Run) -> None:
    """Every request was answered or refused, never both."""
    report, is_answered = run.report, ~run.is_refused
    assert report.num_requests == len(run.is_refused)
    assert report.num_refused == int(run.is_refused.sum())
    assert np.isfinite(run.end_ms[is_answered]).all()
    assert np.isnan(run.end_ms[run.is_refused]).all()
    assert (run.first_token_ms[is_answered] > run.arrival_ms[is_answered]).all()
    assert report.num_hit_blocks + report.num_missed_blocks == report.num_asked_blocks
    for parts in (report.tiers, report.tenants):
        if parts:
            assert sum(part.num_requests for part in parts.values()) == report.num_requests
            assert sum(part.num_refused for part in parts.values()) == report.num_refused


def test_bounds_that_nobody_meets_change_nothing() -> None:
    rows = mixed(20)
    free, bounded = (simulated(rows, admission=a) for a in (None, AdmissionSettings()))
    assert bounded.report == free.report
    assert free.report.num_refused == 0
    assert set(free.report.tiers) == set(TIERS)
    assert set(free.report.tenants) == {"t0", "t1"}


@pytest.mark.parametrize("num_routers", [1, 3])
@pytest.mark.parametrize("hold", [True, False])
def test_answered_and_refused_are_all(num_routers: int, hold: bool) -> None:
    run = simulated(
        burst(60) + mixed(30),
        num_workers=2,
        num_routers=num_routers,
        routing=PlacementSettings(hold=hold),
        admission=AdmissionSettings(max_waiting_requests=9),
        gate_bounds=Bounds(2),
        outages=(Outage(1, 4.0, 9.0),),
    )
    check_conserved(run)
    assert 10 < run.report.num_refused < 200


def test_the_same_seed_gives_the_same_bytes_with_everything_on() -> None:
    settings: dict[str, Any] = {
        "num_blocks": 1500,
        "num_routers": 2,
        "event_lag_s": 0.05,
        "event_loss": 0.02,
        "outages": (Outage(2, 5.0, 8.0),),
        "retention": RetentionPolicy(policy="learned"),
        "admission": AdmissionSettings(max_waiting_requests=6, max_waiting_tokens=40_000),
        "tenants": {"t0": TenantLimits(weight=2.0, max_requests_per_s=8.0)},
        "tiers": TierPolicy(rules={"interactive": TierRule(rank=0, max_ttft_ms=400.0)}),
    }
    runs = [simulated(burst(30) + mixed(20), seed=seed, **settings) for seed in (3, 3, 4)]
    first, again, other = (msgspec.json.encode(run.report) for run in runs)
    check_conserved(runs[0])
    assert runs[0].report.num_refused > 0
    assert first == again != other


def test_a_better_tier_goes_first_and_pushes_others_out() -> None:
    rows = [
        msgspec.structs.replace(row, tier=TIERS[number % 3]) for number, row in enumerate(burst(90))
    ]
    run = simulated(rows, num_workers=1, admission=AdmissionSettings(max_waiting_requests=40))
    check_conserved(run)
    tiers = run.report.tiers
    assert tiers["interactive"].num_refused == 0
    assert tiers["batch"].num_refused >= tiers["standard"].num_refused > 0
    assert tiers["interactive"].ttft_ms.mean < tiers["standard"].ttft_ms.mean


def test_who_gives_way_is_gone_and_counted_once() -> None:
    """One by one the better ones take the places of those that came first."""
    low = burst(10, tier="batch")
    high = burst(10, at_ms=100.0, first_id=10_000, tier="interactive")
    run = simulated(low + high, num_workers=1, admission=AdmissionSettings(max_waiting_requests=10))
    check_conserved(run)
    assert run.report.tiers["batch"].num_refused == run.report.num_refused
    assert 5 <= run.report.num_refused <= 10
    assert not run.is_refused[10:].any()


def test_a_flood_does_not_starve_another_tenant() -> None:
    flood = burst(200, tenant="flood")
    few = [row for at in range(10) for row in burst(1, at_ms=500.0 * at, first_id=10**6 + 100 * at)]
    alone = simulated(few, num_workers=1)
    bounds = AdmissionSettings(max_waiting_requests=50)
    both = simulated(flood + few, num_workers=1, admission=bounds)
    check_conserved(both)
    assert both.report.tenants["default"].num_refused == 0
    assert both.report.tenants["flood"].num_refused > 100
    assert both.report.tenants["default"].ttft_ms.mean < 5 * alone.report.ttft_ms.mean
    assert both.report.tenants["flood"].ttft_ms.mean > 10 * alone.report.ttft_ms.mean


def test_shares_follow_weights() -> None:
    rows = burst(60, tenant="a") + burst(60, first_id=10_000, tenant="b")
    limits = {"a": TenantLimits(weight=4.0)}
    run = simulated(rows, num_workers=1, tenants=limits, admission=AdmissionSettings())
    tenants = run.report.tenants
    assert tenants["a"].ttft_ms.mean < 0.75 * tenants["b"].ttft_ms.mean


def test_deadlines_refuse_what_would_be_late() -> None:
    tiers = TierPolicy(rules={"interactive": TierRule(rank=0, max_ttft_ms=500.0)})
    rows = burst(40)
    free, strict = (simulated(rows, num_workers=2, tiers=t) for t in (TierPolicy(), tiers))
    check_conserved(strict)
    assert free.report.num_refused == 0
    assert 5 < strict.report.num_refused < 35
    assert free.report.ttft_ms.p99 > 1000.0
    assert strict.report.ttft_ms.p99 < 600.0


def test_what_waits_at_a_gate_past_its_deadline_is_refused() -> None:
    """Sent at once, as far as the router can know in time; the gate refuses the rest."""
    tiers = TierPolicy(rules={"interactive": TierRule(rank=0, max_ttft_ms=500.0)})
    run = simulated(
        burst(40),
        num_workers=2,
        slowness={0: 4.0, 1: 4.0},  # nobody has told the router yet
        tiers=tiers,
        routing=PlacementSettings(hold=False),
    )
    check_conserved(run)
    assert run.report.num_refused > 20


def test_a_full_gate_sends_requests_to_others() -> None:
    """Without late binding all go to the worker that has the prefix, until its gate is full."""
    shared = list(range(1, 41))
    rows = [Row(0.0, 40 * TRACE_BLOCK, 20, shared)]
    rows += [
        Row(5000.0 + i, 60 * TRACE_BLOCK, 20, [*shared, *range(100 * i + 100, 100 * i + 120)])
        for i in range(12)
    ]
    routing = PlacementSettings(hold=False, prefix_copy_ratio=0.0, slice_iterations=0)
    run = simulated(
        rows, num_workers=3, num_blocks=20_000, routing=routing,
        admission=AdmissionSettings(), gate_bounds=Bounds(2),
    )  # fmt: skip
    check_conserved(run)
    assert run.report.num_refused <= 3
    assert set(run.worker[~run.is_refused].tolist()) == {0, 1, 2}


def test_a_tenant_over_its_rate_is_refused() -> None:
    limits = {"default": TenantLimits(max_requests_per_s=10.0)}
    settings = AdmissionSettings(burst_s=1.0)
    run = simulated(burst(40, TRACE_BLOCK), tenants=limits, admission=settings)
    check_conserved(run)
    assert run.report.num_refused == 30
    assert simulated(burst(40, TRACE_BLOCK), tenants=limits).report.num_refused == 0


def test_pieces_are_counted() -> None:
    rows = [Row(0.0, 160 * TRACE_BLOCK, 5, list(range(1, 161)))]
    whole, cut = (
        simulated(
            rows, num_workers=1, num_blocks=8000, routing=PlacementSettings(slice_iterations=n)
        )
        for n in (0, 2)
    )
    assert whole.report.num_pieces == 0
    assert cut.report.num_pieces == 4
    assert whole.report.num_asked_blocks == 160 * 16


def test_what_is_computed_again_for_a_later_piece_was_not_cached() -> None:
    """Shorter prompts that pass between its pieces push out what the first ones left."""
    long = Row(0.0, 160 * TRACE_BLOCK, 5, list(range(160)))
    others = burst(40, 20 * TRACE_BLOCK, first_id=10_000)
    others = [msgspec.structs.replace(row, timestamp=50.0 + 30.0 * row.timestamp) for row in others]
    routing = PlacementSettings(slice_iterations=1)
    run = simulated([long, *others], num_workers=1, num_blocks=16 * 170, routing=routing)
    assert run.report.num_pieces == 10
    assert run.report.reuse == 0.0  # and not less
    assert run.cached_tokens.tolist() == [0] * 41


def test_a_tier_that_was_refused_as_a_whole_has_no_times() -> None:
    """Every place was taken by a better one before anything of it began."""
    low = burst(3, at_ms=50.0, first_id=10_000, tier="batch")
    run = simulated(
        burst(30) + low, num_workers=1, admission=AdmissionSettings(max_waiting_requests=12)
    )
    check_conserved(run)
    assert run.report.tiers["batch"] == PartReport(
        num_requests=3, num_refused=3, ttft_ms=Spread(0.0, 0.0, 0.0)
    )


def test_a_tier_without_a_rule_is_named() -> None:
    rows = [Row(0.0, 10, 1, []), Row(1.0, 10, 1, [], tier="gold")]
    with pytest.raises(SettingsError, match=r"request 1 of the trace has tier 'gold', which is"):
        simulated(rows)
    gold = TierPolicy(rules={"gold": TierRule()})
    assert simulated(rows, tiers=gold).report.tiers["gold"].num_requests == 1


def test_routers_without_admission_say_so() -> None:
    with pytest.raises(SettingsError, match="admission: only cachelane has it"):
        simulated(burst(1), "dynamo", admission=AdmissionSettings())
