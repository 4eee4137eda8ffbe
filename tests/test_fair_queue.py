from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.errors import Overloaded
from controllers.fair_queue import Bounds, FairQueue
from controllers.waiting import Waiting

QUANTUM = 1000
MANY = Bounds(10**6)


def names(items: list[Waiting]) -> list[str]:
    return [item.request_id for item in items]


def filled(bounds: Bounds, *items: Waiting) -> FairQueue:
    queue = FairQueue(bounds, QUANTUM)
    for item in items:
        assert queue.submit(item) == []
    return queue


def drained(queue: FairQueue) -> list[Waiting]:
    order = []
    while (item := queue.first()) is not None:
        queue.take(item)
        order.append(item)
    return order


def test_ranks_then_tenants_then_shortest() -> None:
    queue = filled(
        MANY,
        Waiting("batch", 1, 0.0, rank=2),
        Waiting("a long", 900, 0.0, rank=0, tenant="a"),
        Waiting("a short", 800, 0.0, rank=0, tenant="a"),
        Waiting("b", 1000, 0.0, rank=0, tenant="b"),
        Waiting("standard", 5000, 0.0, rank=1),
    )
    assert queue.by_rank() == {0: (3, 2700), 1: (1, 5000), 2: (1, 1)}
    assert [queue.num_up_to(rank) for rank in (0, 1, 5)] == [3, 4, 5]
    assert names(drained(queue)) == ["a short", "b", "a long", "standard", "batch"]
    assert (len(queue), queue.tokens, queue.by_rank()) == (0, 0, {})


def test_the_next_hit_is_of_the_best_rank_that_has_one() -> None:
    queue = filled(
        MANY,
        Waiting("prefill", 10, 0.0, rank=0),
        Waiting("worse", 0, 0.0, rank=2),
        Waiting("better", 0, 9.0, rank=1),
    )
    hit = queue.first_hit()
    assert hit is not None
    assert hit.request_id == "better"
    queue.take(hit)
    assert names(drained(queue)) == ["prefill", "worse"]


def test_cancelled_requests_leave_at_once() -> None:
    queue = filled(MANY, Waiting("a", 5, 0.0), Waiting("b", 7, 0.0))
    assert [queue.cancel("a"), queue.cancel("a"), queue.cancel("nobody")] == [True, False, False]
    assert (len(queue), queue.tokens, "a" in queue, "b" in queue) == (1, 7, False, True)
    assert names(drained(queue)) == ["b"]


def test_who_gives_way_is_the_youngest_of_the_worst_rank() -> None:
    queue = filled(
        Bounds(4),
        Waiting("standard", 1, 0.0, rank=1),
        Waiting("batch old", 1, 1.0, rank=2),
        Waiting("batch new", 1, 2.0, rank=2),
        Waiting("chat", 1, 3.0, rank=0),
    )
    assert names(queue.submit(Waiting("s2", 1, 4.0, rank=1))) == ["batch new"]
    assert names(queue.submit(Waiting("c2", 1, 4.0, rank=0))) == ["batch old"]
    assert names(queue.submit(Waiting("c3", 1, 4.0, rank=0))) == ["s2"]
    with pytest.raises(Overloaded, match="none of them gives way to rank 1"):
        queue.submit(Waiting("s3", 1, 4.0, rank=1))
    assert names(drained(queue)) == ["chat", "c2", "c3", "standard"]


def test_in_its_own_rank_only_a_tenant_with_more_than_its_share_gives_way() -> None:
    queue = filled(Bounds(4), *(Waiting(f"a{i}", 100, 0.0, tenant="a") for i in range(4)))
    assert names(queue.submit(Waiting("b0", 100, 1.0, tenant="b"))) == ["a3"]
    assert names(queue.submit(Waiting("b1", 100, 1.0, tenant="b"))) == ["a2"]
    for tenant in "ab":  # each has its half
        with pytest.raises(Overloaded):
            queue.submit(Waiting("more", 100, 1.0, tenant=tenant))
    assert names(queue.submit(Waiting("b2", 100, 1.0, tenant="b", weight=3.0))) == ["a1"]
    assert sorted(names(drained(queue))) == ["a0", "b0", "b1", "b2"]


def test_tokens_bound_what_waits_and_several_may_have_to_give_way() -> None:
    queue = filled(
        Bounds(10, max_tokens=1000), *(Waiting(f"b{i}", 300, 0.0, rank=2) for i in range(3))
    )
    with pytest.raises(Overloaded, match="3 requests with 900 tokens to prefill wait; its bound "):
        queue.submit(Waiting("b3", 300, 0.0, rank=2))
    assert names(queue.submit(Waiting("chat", 500, 0.0))) == ["b2", "b1"]
    with pytest.raises(Overloaded):
        queue.submit(Waiting("huge", 5000, 0.0))  # chat is of its own rank and tenant
    assert (len(queue), queue.tokens) == (2, 800)


def test_one_alone_may_be_larger_than_the_bound() -> None:
    queue = FairQueue(Bounds(10, max_tokens=100), QUANTUM)
    assert queue.submit(Waiting("huge", 5000, 0.0)) == []
    assert queue.submit(Waiting("hit", 0, 0.0)) == []


def test_an_id_cannot_wait_twice() -> None:
    queue = filled(MANY, Waiting("a", 10, 0.0))
    with pytest.raises(ValueError, match="'a' waits already"):
        queue.submit(Waiting("a", 99, 0.0))
    assert (len(queue), queue.tokens) == (1, 10)


ITEMS = st.lists(
    st.tuples(
        st.integers(0, 3000),
        st.integers(0, 2),
        st.sampled_from("abc"),
        st.sampled_from([0.25, 1.0, 4.0]),
        st.booleans(),
    ),
    max_size=60,
)


def of(rows: list[tuple[int, int, str, float, bool]]) -> list[Waiting]:
    return [
        Waiting(f"r{i}", tokens, i / 10, rank, tenant, weight)
        for i, (tokens, rank, tenant, weight, _) in enumerate(rows)
    ]


@given(ITEMS)
@settings(max_examples=60, deadline=None)
def test_all_that_is_not_cancelled_comes_out_once_by_rank_and_always_the_same(
    rows: list[tuple[int, int, str, float, bool]],
) -> None:
    orders = []
    for _ in range(2):
        queue = filled(MANY, *of(rows))
        gone = [item for item, row in zip(of(rows), rows, strict=True) if row[4]]
        assert all(queue.cancel(item.request_id) for item in gone)
        orders.append(drained(queue))
    order = orders[0]
    assert orders[1] == order
    assert [item.rank for item in order] == sorted(item.rank for item in order)
    assert sorted(names(order)) == sorted(
        item.request_id for item, row in zip(of(rows), rows, strict=True) if not row[4]
    )


@given(ITEMS, st.integers(1, 8), st.integers(1, 5000))
@settings(max_examples=60, deadline=None)
def test_bounds_hold_and_nobody_gives_way_to_a_worse_rank(
    rows: list[tuple[int, int, str, float, bool]], max_requests: int, max_tokens: int
) -> None:
    queue = FairQueue(Bounds(max_requests, max_tokens), QUANTUM)
    inside: dict[str, Waiting] = {}
    for item in of(rows):
        before = queue.by_rank()
        try:
            displaced = queue.submit(item)
        except Overloaded:
            assert queue.by_rank() == before
            stays = [before[rank] for rank in before if rank <= item.rank]
            tokens = sum(tokens for _, tokens in stays)
            is_too_much = tokens > 0 and tokens + item.uncached_tokens > max_tokens
            assert is_too_much or sum(num for num, _ in stays) >= max_requests
            continue
        inside[item.request_id] = item
        for victim in displaced:
            assert inside.pop(victim.request_id) == victim
            assert victim.rank > item.rank or victim.tenant != item.tenant
            assert victim.rank >= item.rank
        assert len(queue) <= max_requests
        prefills = [waiting for waiting in inside.values() if waiting.uncached_tokens]
        assert queue.tokens <= max_tokens or len(prefills) == 1
    assert sorted(names(drained(queue))) == sorted(inside)


def test_nobody_of_a_rank_starves_while_others_keep_coming() -> None:
    """A long prompt of a light tenant, and an old one of a busy tenant, against endless floods."""
    queue = FairQueue(MANY, QUANTUM)
    queue.submit(Waiting("light", 10_000, 0.0, tenant="light", weight=0.1))
    queue.submit(Waiting("old", 10_000, 0.0, tenant="busy", weight=10.0))
    number, started = 0, set[str]()
    for step in range(6_000):
        while len(queue) < 30:
            queue.submit(
                Waiting(f"r{number}", 200, step / 100, tenant=("busy", "other")[number % 2])
            )
            number += 1
        item = queue.first()
        assert item is not None
        queue.take(item)
        started.add(item.request_id)
    assert {"light", "old"} <= started


def test_shares_among_tenants_are_their_weights_though_the_queue_is_full() -> None:
    """Both send three times what is served; the lighter one sends more of it."""
    queue, rng = FairQueue(Bounds(40), QUANTUM), random.Random(2)
    weights, served = {"heavy": 3.0, "light": 1.0}, {"heavy": 0, "light": 0}
    for step in range(3000):
        for i in range(3):
            tenant = "heavy" if rng.random() < 0.45 else "light"
            item = Waiting(f"{step}-{i}", 500, step / 10, 1, tenant, weights[tenant])
            try:
                queue.submit(item)
            except Overloaded:
                continue
        first = queue.first()
        assert first is not None
        queue.take(first)
        if step >= 500:
            served[first.tenant] += first.charge
    assert served["heavy"] / served["light"] == pytest.approx(3.0, rel=0.03)
