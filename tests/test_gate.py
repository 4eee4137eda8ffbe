from __future__ import annotations

import random

import pytest

from controllers.errors import Overloaded
from controllers.gate import Gate, order_key


def gate(max_waiting: int = 100, shared: int = 1536) -> Gate:
    return Gate(max_waiting, shared)


def test_shortest_first_and_equals_in_order_of_arrival() -> None:
    g = gate(shared=0)
    for name, tokens in (("long", 5000), ("b", 100), ("a", 100), ("short", 1)):
        g.submit(name, tokens, now=0.0)
    order = [g.next(0, 1) for _ in range(4)]
    assert order == [["short"], ["b"], ["a"], ["long"]]
    assert (len(g), g.waiting_tokens, g.next(0, 9)) == (0, 0, [])


def test_who_waits_longer_goes_first_in_the_end() -> None:
    g = gate(shared=0)
    g.submit("long", 64_000, now=0.0)  # weighs 992 ms
    g.submit("early", 100, now=0.9)
    g.submit("late", 100, now=1.1)
    assert [g.next(0, 1) for _ in range(3)] == [["early"], ["long"], ["late"]]


def test_a_better_tier_goes_first_whatever_it_costs() -> None:
    g = gate(shared=0)
    g.submit("batch", 1, now=0.0, tier=1)
    g.submit("chat", 90_000, now=5.0, tier=0)
    assert [g.next(0, 1), g.next(0, 1)] == [["chat"], ["batch"]]
    assert sorted([(1, 0.0), (0, 9e9)]) == [(0, 9e9), (1, 0.0)]
    assert order_key(0, 1000, 2.0) == (0, 15.5 + 2000.0)


def test_one_prefill_at_a_time_unless_they_are_short() -> None:
    g = gate()
    for name, tokens in (("a", 1000), ("b", 500), ("c", 600), ("d", 2000)):
        g.submit(name, tokens, now=0.0)
    assert g.next(prefill_tokens_left=0, num_free=9) == ["b", "c"]  # with a: 2100
    assert g.next(prefill_tokens_left=1100, num_free=9) == []
    assert g.next(prefill_tokens_left=536, num_free=9) == ["a"]
    assert g.next(prefill_tokens_left=1, num_free=9) == []
    assert g.next(prefill_tokens_left=0, num_free=9) == ["d"]


def test_a_long_prefill_goes_alone() -> None:
    g = gate()
    g.submit("long", 5000, now=0.0)
    g.submit("longer", 6000, now=0.0)
    assert g.next(0, 9) == ["long"]


def test_the_first_in_order_is_not_overtaken_by_shorter_prefills() -> None:
    g = gate()
    g.submit("old and long", 3000, now=0.0)
    g.submit("new and short", 10, now=60.0)
    assert g.next(prefill_tokens_left=100, num_free=9) == []
    assert g.next(prefill_tokens_left=0, num_free=9) == ["old and long"]


def test_full_hits_pass() -> None:
    g = gate()
    g.submit("long", 3000, now=0.0)
    g.submit("hit", 0, now=60.0)
    g.submit("better than hit", -5, now=61.0)
    assert g.waiting_tokens == 3000
    assert g.next(prefill_tokens_left=9000, num_free=9) == ["hit", "better than hit"]
    assert "long" in g


def test_free_places_bound_what_starts() -> None:
    g = gate()
    for i in range(5):
        g.submit(f"r{i}", i, now=0.0)
    assert g.next(0, 0) == []
    assert g.next(0, 2) == ["r0", "r1"]
    assert (len(g), g.waiting_tokens) == (3, 2 + 3 + 4)


def test_cancelled_requests_leave_at_once() -> None:
    g = gate()
    for name, tokens in (("a", 1), ("b", 2), ("c", 0)):
        g.submit(name, tokens, now=0.0)
    assert [g.cancel("a"), g.cancel("a"), g.cancel("nobody"), g.cancel("c")] == [
        True,
        False,
        False,
        True,
    ]
    assert (len(g), g.waiting_tokens, "a" in g, "b" in g) == (1, 2, False, True)
    assert g.next(0, 9) == ["b"]


def test_an_id_may_come_again_after_it_was_cancelled() -> None:
    g = gate(shared=0)
    g.submit("a", 1, now=0.0)
    g.cancel("a")
    g.submit("b", 2, now=0.0)
    g.submit("a", 5000, now=0.0)
    assert [g.next(0, 1), g.next(0, 1), g.next(0, 1)] == [["b"], ["a"], []]


def test_a_full_gate_refuses_and_stays_as_it_is() -> None:
    g = gate(max_waiting=2)
    g.submit("a", 10, now=0.0)
    g.submit("b", 20, now=0.0)
    with pytest.raises(Overloaded, match="2 requests wait for this worker, its bound"):
        g.submit("c", 1, now=0.0)
    assert (len(g), g.waiting_tokens, "c" in g) == (2, 30, False)
    g.cancel("a")
    g.submit("c", 1, now=0.0)
    assert g.next(0, 9) == ["c", "b"]


def test_an_id_cannot_wait_twice() -> None:
    g = gate()
    g.submit("a", 10, now=0.0)
    with pytest.raises(ValueError, match="'a' waits already"):
        g.submit("a", 99, now=0.0)
    assert (len(g), g.waiting_tokens) == (1, 10)


def test_cancelling_leaves_nothing_behind() -> None:
    g = gate(max_waiting=10_000)
    rng = random.Random(0)
    for i in range(5_000):
        g.submit(f"r{i}", rng.randrange(3), now=i / 1000)
        if i >= 10:
            assert g.cancel(f"r{i - 10}")
    assert len(g) == 10
    assert len(g._hits) + len(g._prefills) <= 2 * 10 + 64 + 1
    started = g.next(0, 100)
    assert sorted(started) == sorted(f"r{i}" for i in range(4990, 5000))
