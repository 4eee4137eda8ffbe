from __future__ import annotations

import msgspec
import pytest

from controllers.autoscaling_report import TierReport
from controllers.events import Iteration, Load
from controllers.replica_meter import ReplicaMeter, TierTarget
from tests.autoscaling_rig import SETTINGS

INTERACTIVE = TierTarget("interactive", 0, 2000.0, 100.0)


def meter(num_ranks: int = 1) -> ReplicaMeter:
    found = ReplicaMeter(8192, num_ranks, 0.0)
    found.configure(msgspec.structs.replace(SETTINGS, window_s=10.0, cold_start_s=5.0))
    return found


def load(hit: int = 0, prompt: int = 0, iterations: list[Iteration] | None = None) -> Load:
    return Load(
        num_active=2,
        num_queued=1,
        queued_prefill_tokens=0,
        decode_tokens=0,
        used_blocks={"gpu": 20},
        total_blocks={"gpu": 100},
        cached_blocks={"gpu": 60},
        hit_tokens=hit,
        prompt_tokens=prompt,
        iterations=iterations or [],
    )


def tier(found: ReplicaMeter, now: float, name: str = "interactive") -> TierReport:
    return found.tiers(now)[name]


def test_a_request_from_the_gate_to_its_end() -> None:
    found = meter()
    found.arrived("a", INTERACTIVE, 4096, 100.0)
    waiting = tier(found, 100.1)
    assert waiting.backlog_ms == pytest.approx(110.0)  # the prior: 10 ms and 200 of a full one
    assert waiting.service_ms == pytest.approx(110.0)
    assert (waiting.num_ttft, waiting.num_itl) == (0.0, 0.0)
    found.first_token("a", 100.5)
    assert (tier(found, 100.6).backlog_ms, tier(found, 100.6).num_ttft) == (0.0, 1.0)
    found.ended("a", 11, 101.0)  # 50 ms a token
    done = tier(found, 101.0)
    assert (done.num_ttft_missed, done.num_itl, done.num_itl_missed) == (0.0, 1.0, 0.0)
    assert found.tiers(120.0) == {}


def test_slow_ones_are_missed() -> None:
    found = meter()
    found.arrived("a", INTERACTIVE, 10, 100.0)
    found.first_token("a", 102.5)
    found.ended("a", 11, 104.0)
    late = tier(found, 104.0)
    assert (late.num_ttft_missed, late.num_itl_missed) == (1.0, 1.0)


def test_one_that_has_waited_too_long_is_missed_before_its_first_token() -> None:
    found = meter()
    found.arrived("a", INTERACTIVE, 10, 100.0)
    assert tier(found, 101.9).num_ttft == 0.0
    assert (tier(found, 102.1).num_ttft, tier(found, 102.1).num_ttft_missed) == (1.0, 1.0)
    assert tier(found, 200.0).num_ttft_missed == 1.0  # it still waits


def test_the_first_seconds_of_a_replica_say_nothing_of_latency() -> None:
    found = meter()
    found.arrived("a", INTERACTIVE, 10, 1.0)
    assert tier(found, 4.9).num_ttft == 0.0
    found.first_token("a", 9.0)
    cold = tier(found, 9.5)
    assert (cold.num_ttft, cold.requests_per_s > 0) == (0.0, True)


def test_each_tier_has_its_own_figures_and_targets() -> None:
    found = meter()
    found.arrived("a", TierTarget("batch", 2, 60_000.0, 1000.0), 10, 100.0)
    found.arrived("b", TierTarget(), 10, 100.0)
    found.arrived("c", TierTarget(), 10, 100.0)
    tiers = found.tiers(100.0)
    assert {name: (t.rank, t.ttft_slo_ms) for name, t in tiers.items()} == {
        "batch": (2.0, 60_000.0),
        "standard": (1.0, 5000.0),
    }
    assert tiers["standard"].requests_per_s == pytest.approx(2 / 9, rel=0.1)


def test_one_token_and_an_abort_tell_nothing_of_the_time_between() -> None:
    found = meter()
    for name, num_tokens in (("a", 1), ("b", 0)):
        found.arrived(name, INTERACTIVE, 10, 100.0)
        if num_tokens:
            found.first_token(name, 100.1)
        found.ended(name, num_tokens, 100.2)
    found.ended("unknown", 5, 100.2)
    assert (tier(found, 100.3).num_itl, tier(found, 100.3).backlog_ms) == (0.0, 0.0)


def test_rates_from_the_engines_counters() -> None:
    found = meter()
    found.on_load(0, load(hit=100, prompt=1000), 100.0)
    found.on_load(0, load(hit=150, prompt=1090, iterations=[Iteration(512, 0, 20, 45.0, 20)]), 109)
    figures = found.figures(4, 109.0)
    assert figures["hit_tokens_per_s"] == pytest.approx(5.0, rel=0.12)
    assert figures["prompt_tokens_per_s"] == pytest.approx(9.0, rel=0.12)
    assert figures["prefill_busy"] == pytest.approx(0.09, rel=0.12)
    assert [figures[name] for name in ("num_active", "num_waiting", "used_blocks")] == [2, 5, 20]
    found.on_load(0, load(hit=0, prompt=0), 109.5)  # the engine was started anew
    assert found.figures(0, 109.5)["hit_tokens_per_s"] >= 0.0


def test_ranks_share_the_work() -> None:
    one, two = meter(), meter(num_ranks=2)
    for found in (one, two):
        found.arrived("a", INTERACTIVE, 4096, 100.0)
    assert tier(two, 100.0).backlog_ms == tier(one, 100.0).backlog_ms / 2


def test_a_changed_target_counts_from_the_next_request_on() -> None:
    found = meter()
    found.arrived("a", INTERACTIVE, 10, 100.0)
    found.arrived("b", TierTarget("interactive", 0, 100.0, 100.0), 10, 100.0)
    for name in ("a", "b"):
        found.first_token(name, 100.5)
    done = tier(found, 100.6)
    assert (done.ttft_slo_ms, done.num_ttft, done.num_ttft_missed) == (100.0, 2.0, 1.0)


def test_what_waited_before_it_came_is_part_of_its_time_to_first_token() -> None:
    found = meter()
    found.arrived("a", INTERACTIVE, 10, 100.0, waited_s=1.9)
    assert tier(found, 100.05).num_ttft_missed == 0.0
    assert tier(found, 100.2).num_ttft_missed == 1.0  # it still waits
    found.first_token("a", 100.2)
    assert (tier(found, 100.2).num_ttft, tier(found, 100.2).num_ttft_missed) == (1.0, 1.0)


def test_a_piece_of_a_prompt_is_work_and_no_request() -> None:
    whole, cut = meter(), meter()
    whole.arrived("a", INTERACTIVE, 8192, 100.0)
    for name, at in (("a/1", 100.0), ("a", 101.0)):
        cut.arrived(name, INTERACTIVE, 4096, at, waited_s=at - 100.0, is_piece=name != "a")
        assert tier(cut, at).backlog_ms == pytest.approx(110.0)
        cut.first_token(name, at + 0.9)
        cut.ended(name, 1, at + 0.9)
    done, expected = tier(cut, 102.0), tier(whole, 102.0)
    assert (done.num_ttft, done.num_ttft_missed) == (1.0, 0.0)
    assert done.requests_per_s == expected.requests_per_s
    assert done.prefill_ms_per_s == pytest.approx(expected.prefill_ms_per_s)
    assert done.service_ms == pytest.approx(expected.service_ms + 10.0)  # two iterations


def test_a_piece_that_waits_long_is_nobodys_latency() -> None:
    found = meter()
    found.arrived("a/1", INTERACTIVE, 10, 100.0, is_piece=True)
    assert tier(found, 105.0).num_ttft == 0.0
    found.first_token("a/1", 105.0)
    assert tier(found, 105.0).num_ttft == 0.0


def test_one_that_is_handed_back_is_no_work_of_this_replica() -> None:
    found = meter()
    found.arrived("a", INTERACTIVE, 4096, 100.0)
    before = tier(found, 100.5)
    found.arrived("b", INTERACTIVE, 8192, 100.5)
    found.handed_back("b", 100.5)
    found.handed_back("unknown", 100.5)
    assert tier(found, 100.5) == before
    found.arrived("c", INTERACTIVE, 8192, 100.95)
    found.handed_back("c", 101.05)  # in another bucket of the window
    assert tier(found, 101.05).service_ms == before.service_ms
    after = tier(found, 110.5)  # that of its arrival is forgotten already
    assert (after.requests_per_s, after.prefill_ms_per_s, after.service_ms) == (0.0, 0.0, 0.0)
