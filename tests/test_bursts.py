"""Who chooses first in a burst; and that it costs the others nothing."""

from __future__ import annotations

import math
import random

from controllers.bursts import Wish, last_ones_choose


def wish(
    service_ms: float, waited_ms: float = 0.0, left_ms: float = math.inf, is_tied: bool = False
) -> Wish:
    return Wish(service_ms, service_ms + waited_ms, left_ms, is_tied)


def order_of(wishes: list[Wish], ready_ms: list[float], is_longest_first: bool = True) -> list[int]:
    soonest_first = sorted(range(len(wishes)), key=lambda i: wishes[i].service_ms)
    return last_ones_choose(soonest_first, wishes, ready_ms, is_longest_first)


def times_ms(order: list[int], wishes: list[Wish], ready_ms: list[float]) -> list[float]:
    """Until each one's first token if each in turn goes to the worker that is ready first."""
    ready, ends = list(ready_ms), [0.0] * len(wishes)
    for i in order:
        row = ready.index(min(ready))
        ready[row] += wishes[i].service_ms
        ends[i] = ready[row]
    return ends


def test_the_longest_one_chooses_first_and_those_between_wait_for_the_shortest() -> None:
    wishes = [wish(ms) for ms in (10.0, 20.0, 30.0, 40.0, 50.0, 1000.0)]
    assert order_of(wishes, [0.0] * 4) == [5, 4, 0, 1, 3, 2]
    assert order_of(wishes, [0.0] * 4, is_longest_first=False) == [0, 1, 5, 4, 3, 2]
    assert order_of(wishes, [0.0] * 6) == [5, 4, 3, 2, 1, 0]


def test_who_has_waited_longest_counts_as_late() -> None:
    wishes = [wish(10.0), wish(20.0, waited_ms=500.0), wish(300.0), wish(400.0)]
    assert order_of(wishes, [0.0, 0.0, 0.0]) == [1, 3, 0, 2]


def test_a_worker_that_is_ready_soon_counts() -> None:
    """Each of three will have a worker for itself, so the longest one takes the one that is free;
    if the others take long to be ready, the shortest one goes first there."""
    wishes = [wish(100.0), wish(200.0), wish(1000.0)]
    assert order_of(wishes, [0.0, 5.0, 9.0]) == [2, 1, 0]
    assert order_of(wishes, [0.0, 5000.0, 9000.0]) == [0, 1, 2]


def test_tied_ones_come_first_and_keep_their_worker_busy() -> None:
    wishes = [wish(100.0, is_tied=True), wish(50.0), wish(1000.0)]
    assert order_of(wishes, [0.0, 100.0, 0.0]) == [0, 2, 1]
    wishes = [wish(5000.0, is_tied=True), wish(50.0), wish(1000.0)]
    assert order_of(wishes, [0.0, 5000.0]) == [1, 2, 0]  # nobody may be late for a long tied one


def test_a_worker_that_not_all_may_have_is_none() -> None:
    wishes = [wish(100.0), wish(150.0), wish(1000.0)]
    assert order_of(wishes, [0.0, 0.0, math.inf, math.inf]) == [2, 0, 1]
    assert order_of(wishes, [0.0, math.inf, math.inf, math.inf]) == [0, 1, 2]


def test_nobody_waits_who_would_be_late_then() -> None:
    """The second one would have its first token after 250 ms if it waited for the first one."""
    for left_ms, expected in ((249.0, [0, 1, 2]), (250.0, [2, 0, 1])):
        wishes = [wish(100.0), wish(150.0, left_ms=left_ms), wish(1000.0)]
        assert order_of(wishes, [0.0, 0.0]) == expected


def test_without_a_free_worker_the_shortest_goes_first() -> None:
    wishes = [wish(10.0), wish(1000.0)]
    assert order_of(wishes, [1.0, 1.0, 1.0]) == [0, 1]
    crowd = [wish(10.0 + i) for i in range(5)]  # somebody comes behind each of two
    assert order_of(crowd, [0.0, 0.0]) == [0, 1, 2, 3, 4]


def test_it_costs_nothing_on_average_and_the_last_one_ends_sooner() -> None:
    rng = random.Random(0)
    sooner = 0
    for _ in range(200):
        num_workers = rng.randrange(2, 9)
        wishes = [wish(rng.expovariate(0.01)) for _ in range(rng.randrange(2, 2 * num_workers + 1))]
        ready_ms = [0.0] * num_workers
        plain = sorted(range(len(wishes)), key=lambda i: wishes[i].service_ms)
        before = times_ms(plain, wishes, ready_ms)
        after = times_ms(order_of(wishes, ready_ms), wishes, ready_ms)
        assert sum(after) <= sum(before) * (1 + 1e-9)
        assert max(after) <= max(before) + 1e-9
        sooner += max(after) < max(before) - 1e-9
    assert sooner > 50
