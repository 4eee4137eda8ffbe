from __future__ import annotations

import math

import msgspec
import pytest

from tests.autoscaling_rig import SETTINGS, Fleet, busy, report, tier


def test_work_that_fits_changes_nothing() -> None:
    fleet = Fleet(2)
    assert fleet.go_on(1.3, 300) == []


def test_up_at_once_to_what_the_slo_needs() -> None:
    fleet = Fleet(1)
    verdict = fleet.see_alike(2.5)
    assert (verdict.action, verdict.reason, verdict.target) == ("up", "ttft", 3)
    assert verdict.now is not None
    assert not verdict.now.is_met
    assert verdict.then is not None
    assert verdict.then.is_met


def test_up_by_a_bounded_step_and_not_again_before_the_cooldown() -> None:
    settings = msgspec.structs.replace(SETTINGS, max_step_up=1, up_cooldown_s=10.0)
    fleet = Fleet(1, settings)
    assert fleet.go_on(5.0, 25) == ["1->2", "2->3", "3->4"]


def test_never_beyond_the_bounds() -> None:
    fleet = Fleet(7)
    assert fleet.see_alike(100.0).target == 8
    fleet.now += 100
    assert (fleet.see_alike(100.0).target, fleet.see_alike(100.0).action) == (8, "hold")
    verdict = fleet.see_alike(100.0, max_replicas=5)
    assert (verdict.target, verdict.action, verdict.reason) == (5, "down", "bounds")
    fleet = Fleet(1)
    verdict = fleet.see_alike(0.0, min_replicas=3)
    assert (verdict.target, verdict.action, verdict.reason) == (3, "up", "bounds")


def test_down_only_when_fewer_have_been_enough_for_the_settled_time() -> None:
    fleet = Fleet(3)
    assert fleet.go_on(0.2, 60) == []
    assert fleet.go_on(0.2, 1) == ["3->2"]
    assert fleet.go_on(0.2, 60) == []
    assert fleet.go_on(0.2, 60) == ["2->1"]
    assert fleet.go_on(0.2, 300) == []


def test_a_moment_of_more_work_begins_the_settled_time_anew() -> None:
    fleet = Fleet(2)
    assert fleet.go_on(0.2, 50) + fleet.go_on(1.4, 1) + fleet.go_on(0.2, 60) == []
    # The running mean still remembers that moment for a while.
    assert fleet.go_on(0.2, 30) == ["2->1"]


def test_between_the_margins_nothing_moves() -> None:
    """What is enough for two does not yet allow one, and what needs two is not given up."""
    for demand in [step / 10 for step in range(1, 20)]:
        fleet = Fleet(2)
        done = fleet.go_on(demand, 600)
        assert len(done) <= 1, (demand, done)


def test_a_replica_that_must_be_filled_again_is_not_given_up() -> None:
    """Its hits would be computed elsewhere: 60 s of prefill at once, on the one that stays."""
    warm = report(
        tiers={"interactive": busy(0.1)},
        hit_tokens_per_s=2000.0,
        prompt_tokens_per_s=2100.0,
        cached_blocks=1000,
        block_size=600,
        prefill_ms_per_token=0.1,
    )
    fleet = Fleet(2)
    for _ in range(200):
        fleet.now += 1
        verdict = fleet.see(warm, warm)
    assert (verdict.action, verdict.reason) == ("hold", "ttft with 1")


@pytest.mark.parametrize("num_known", [0, 1])
def test_replicas_that_are_not_known_let_none_go(num_known: int) -> None:
    fleet = Fleet(2)
    idle = [report(tiers={})] * num_known
    for _ in range(200):
        fleet.now += 1
        verdict = fleet.see(*idle, num_running=2)
    assert (verdict.action, verdict.target) == ("hold", 2)


def test_nothing_known_calls_for_no_more() -> None:
    fleet = Fleet(2)
    verdict = fleet.see(num_running=2, in_routers=1000.0)
    assert (verdict.action, verdict.reason) == ("hold", "no figures")


def test_replicas_that_are_starting_count_as_there() -> None:
    fleet = Fleet(4)
    overloaded = report(tiers={"interactive": busy(2.5)})
    verdict = fleet.see(overloaded)
    assert (verdict.action, verdict.reason) == ("hold", "replicas are starting")


def test_requests_in_routers_count_as_mean_ones() -> None:
    fleet = Fleet(1)
    assert fleet.see(report(), in_routers=10.0).action == "hold"
    fleet.now += 60
    assert fleet.see(report(), in_routers=1000.0).action == "up"


def test_the_strictest_tier_with_work_decides() -> None:
    """Half a replica's work is enough for a tier of 2 s; not for one of 250 ms."""
    fleet = Fleet(1)
    assert fleet.see(report(tiers={"interactive": busy(0.5)})).action == "hold"
    strict = tier(ttft_slo_ms=300.0, requests_per_s=0.1, prefill_ms_per_s=10.0)
    both = {"interactive": busy(0.5, rank=1), "strict": strict}
    verdict = fleet.see(report(tiers=both))
    assert (verdict.action, verdict.reason) == ("up", "ttft")
    assert verdict.now is not None
    assert verdict.now.tier is not None
    assert verdict.now.tier.name == "strict"


def test_a_tier_without_work_decides_nothing() -> None:
    fleet = Fleet(1)
    idle = tier(ttft_slo_ms=1.0, requests_per_s=0.0, prefill_ms_per_s=0.0)
    verdict = fleet.see(report(tiers={"interactive": busy(0.5), "strict": idle}))
    assert verdict.action == "hold"


def test_batch_waits_behind_interactive_without_calling_for_replicas() -> None:
    batch = tier(rank=2, ttft_slo_ms=60_000.0, itl_slo_ms=1000.0, backlog_ms=10_000.0)
    fleet = Fleet(1)
    assert fleet.see(report(tiers={"interactive": busy(0.4), "batch": batch})).action == "hold"


def test_a_prefill_longer_than_its_slo_does_not_call_for_every_replica() -> None:
    long = tier(service_ms=5000.0, service_ms2=5000.0**2, requests_per_s=0.02, prefill_ms_per_s=100)
    assert Fleet(1).see(report(tiers={"interactive": long})).action == "hold"


def test_missed_latencies_call_for_one_more_where_there_is_work() -> None:
    missing = {"num_ttft": 100.0, "num_ttft_missed": 20.0}
    fleet = Fleet(2)
    verdict = fleet.see(*[report(tiers={"interactive": busy(0.5, **missing)})] * 2)
    assert (verdict.action, verdict.reason, verdict.target) == ("up", "measured latency", 3)
    fleet = Fleet(2)
    verdict = fleet.see(*[report(tiers={"interactive": busy(0.05, **missing)})] * 2)
    assert (verdict.action, verdict.reason) == ("hold", "ttft of interactive missed")


def test_few_samples_say_nothing() -> None:
    few = {"num_ttft": 3.0, "num_ttft_missed": 3.0}
    fleet = Fleet(1)
    assert fleet.see(report(tiers={"interactive": busy(0.5, **few)})).action == "hold"


def test_blocks_and_places_count_as_well() -> None:
    full = report(used_blocks=950, num_active=10)
    verdict = Fleet(1).see(full)
    assert (verdict.action, verdict.reason, verdict.target) == ("up", "blocks", 2)
    crowded = report(num_active=64, num_waiting=40)
    verdict = Fleet(1).see(crowded)
    assert (verdict.action, verdict.reason, verdict.target) == ("up", "slots", 2)


def test_slow_decoding_counts_as_well() -> None:
    slow = report(used_blocks=500, decode_ms=160.0, num_active=10)
    verdict = Fleet(1).see(slow)
    assert (verdict.action, verdict.reason, verdict.target) == ("up", "itl", 3)


def test_to_zero_and_back() -> None:
    settings = msgspec.structs.replace(SETTINGS, min_replicas=0, zero_after_s=30.0)
    fleet = Fleet(1, settings)
    idle = report(tiers={})
    for _ in range(30):
        fleet.now += 1
        assert fleet.see(idle).target == 1
    fleet.now += 1
    verdict = fleet.see(idle)
    assert (verdict.target, verdict.action, verdict.reason) == (0, "down", "no work")
    assert fleet.see().action == "hold"
    verdict = fleet.see(in_routers=1.0)
    assert (verdict.target, verdict.action, verdict.reason) == (1, "up", "requests wait")


def test_not_to_zero_while_requests_wait_or_a_replica_is_not_known() -> None:
    settings = msgspec.structs.replace(SETTINGS, min_replicas=0, zero_after_s=30.0)
    for changes in ({"in_routers": 1.0}, {"num_running": 2}):
        fleet = Fleet(1, settings)
        for _ in range(100):
            fleet.now += 1
            fleet.see(report(tiers={}), **changes)  # type: ignore[arg-type]
        assert fleet.target == 1


def test_growing_work_is_served_as_it_will_be() -> None:
    steady = Fleet(1, msgspec.structs.replace(SETTINGS, lookahead_s=120.0))
    growing = Fleet(1, msgspec.structs.replace(SETTINGS, lookahead_s=120.0))
    steady.go_on(0.82, 600)
    for second in range(600):
        growing.go_on(0.2 + 0.62 * second / 600, 1)
    assert (steady.target, growing.target) == (1, 2)


def test_forecasts_of_a_queue_that_never_ends_are_infinite_and_compare() -> None:
    verdict = Fleet(8).see_alike(80.0)
    assert verdict.now is not None
    assert verdict.now.tier is not None
    assert math.isinf(verdict.now.tier.ttft_ms)
    assert verdict.action == "hold"
