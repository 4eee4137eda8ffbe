from __future__ import annotations

import pytest

from controllers.autoscaling_fleet import fleet_of
from tests.autoscaling_rig import busy, report, tier


def test_nothing_is_idle() -> None:
    load = fleet_of([], 0.0)
    assert (load.has_work, load.demand, load.hit_rate, load.tiers) == (False, 0.0, None, ())
    load = fleet_of([report(tiers={})], 0.0)
    assert (load.has_work, load.hit_rate) == (False, None)


def test_work_adds_up_by_tier_in_the_order_of_ranks() -> None:
    load = fleet_of(
        [
            report(tiers={"batch": busy(0.2, rank=2), "interactive": busy(0.3)}, num_active=2),
            report(tiers={"interactive": busy(0.5, backlog_ms=50.0)}, num_waiting=3),
        ],
        0.0,
    )
    assert [tier.name for tier in load.tiers] == ["interactive", "batch"]
    assert [tier.demand for tier in load.tiers] == pytest.approx([0.8, 0.2])
    assert (load.backlog_ms, load.num_active, load.num_waiting) == (50.0, 2.0, 3.0)
    assert load.tiers[0].service_ms == pytest.approx(100.0)


def test_what_an_engine_spent_counts_as_long_as_it_keeps_up() -> None:
    """Small iterations cost more than the best pace; a full engine cannot show what it lacks."""
    assert fleet_of([report(prefill_busy=0.7)], 0.0).demand == pytest.approx(0.7)
    late = report(prefill_busy=1.0, tiers={"interactive": busy(3.0)})
    assert fleet_of([late], 0.0).demand == pytest.approx(3.0)


def test_the_stricter_slo_counts_while_it_changes() -> None:
    new, old = tier(ttft_slo_ms=500.0), tier(ttft_slo_ms=2000.0)
    load = fleet_of([report(tiers={"a": new}), report(tiers={"a": old})], 0.0)
    assert load.tiers[0].ttft_slo_ms == 500.0


def test_requests_in_routers_wait_as_mean_ones_of_all_tiers() -> None:
    tiers = {"a": busy(0.3), "b": busy(0.1, rank=1)}
    load = fleet_of([report(tiers=tiers)], 8.0)
    assert [tier.backlog_ms for tier in load.tiers] == pytest.approx([600.0, 200.0])
    assert load.num_waiting == 8.0


def test_a_cache_is_worth_at_most_what_it_holds() -> None:
    rich = {"prefill_ms_per_token": 0.1, "cached_blocks": 100, "block_size": 10}
    assert fleet_of([report(hit_tokens_per_s=1.0, **rich)], 0.0).refill_ms == pytest.approx(30.0)
    assert fleet_of([report(hit_tokens_per_s=99.0, **rich)], 0.0).refill_ms == pytest.approx(100.0)


def test_the_hit_rate_and_the_rise_of_decoding() -> None:
    load = fleet_of(
        [report(prompt_tokens_per_s=100.0, hit_tokens_per_s=25.0, used_blocks=500, decode_ms=30.0)],
        0.0,
    )
    assert (load.hit_rate, load.decode_rise_ms) == (0.25, 40.0)
