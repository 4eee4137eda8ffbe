from __future__ import annotations

from collections import Counter

from controllers.placement_types import Query
from controllers.router_queue import RouterQueue

TOKENS = 300.0


def query(number: int, tenant: str, weight: float, rank: int = 0) -> Query:
    return Query(
        request_id=str(number),
        hashes=[],
        num_tokens=300,
        tenant=tenant,
        weight=weight,
        rank=rank,
    )


def test_tenants_that_keep_sending_are_served_by_their_weights() -> None:
    """Each that is sent is followed by another of its tenant."""
    queue, sent = RouterQueue(), Counter[str]()
    numbers = iter(range(1000))
    for _ in range(5):
        for tenant, weight in (("heavy", 3.0), ("light", 1.0)):
            queue.add(query(next(numbers), tenant, weight), 0.0)
    for _ in range(400):
        waiters = queue.scanned()
        first = waiters[queue.in_turns(waiters, range(10), [TOKENS] * len(waiters))[0]].query
        queue.sent(first, TOKENS)
        sent[first.tenant] += 1
        queue.add(query(next(numbers), first.tenant, first.weight), 0.0)
    assert sent == {"heavy": 300, "light": 100}


def test_nobody_saves_up_by_staying_away() -> None:
    queue = RouterQueue()
    for number in range(20):
        queue.add(query(number, "busy", 1.0), 0.0)
    for number in range(10):
        queue.sent(query(number, "busy", 1.0), TOKENS)
    for number in range(100, 110):
        queue.add(query(number, "rested", 1.0), 0.0)
    waiters = queue.scanned()
    order = queue.in_turns(waiters, range(len(waiters)), [TOKENS] * len(waiters))
    assert Counter(waiters[i].query.tenant for i in order[:10]) == {"busy": 5, "rested": 5}


def test_soonest_first_but_waiting_counts() -> None:
    queue = RouterQueue()
    for number, since_s in enumerate((0.0, 1.0, 1.0)):
        queue.add(query(number, "one", 1.0), since_s)
    waiters = queue.scanned()
    assert queue.soonest_first(waiters, [900.0, 300.0, 200.0], 1.5) == [0, 2, 1]
    assert queue.soonest_first(waiters, [1400.0, 300.0, 200.0], 1.5) == [2, 1, 0]


def test_ranks_and_turns_come_before_the_order_that_is_asked_for() -> None:
    queue = RouterQueue()
    for number, tenant in enumerate("aab"):
        queue.add(query(number, tenant, 1.0), 0.0)
    queue.add(query(3, "a", 1.0, rank=-1), 0.0)
    waiters = queue.scanned()
    assert queue.in_turns(waiters, [1, 0, 2, 3], [TOKENS] * 4) == [3, 1, 2, 0]
