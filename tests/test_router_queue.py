from __future__ import annotations

from collections import Counter

from controllers.placement_types import Query
from controllers.router_queue import RouterQueue

TOKENS = 300.0


def query(number: int, tenant: str, weight: float) -> Query:
    return Query(request_id=str(number), hashes=[], num_tokens=300, tenant=tenant, weight=weight)


def test_tenants_that_keep_sending_are_served_by_their_weights() -> None:
    """Each that is sent is followed by another of its tenant."""
    queue, sent = RouterQueue(), Counter[str]()
    numbers = iter(range(1000))
    for _ in range(5):
        for tenant, weight in (("heavy", 3.0), ("light", 1.0)):
            queue.add(query(next(numbers), tenant, weight), 0.0)
    for _ in range(400):
        waiters = queue.scanned()
        same = [100.0] * len(waiters)
        first = waiters[queue.order(waiters, same, [TOKENS] * len(waiters), 0.0)[0]].query
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
    order = queue.order(waiters, [100.0] * len(waiters), [TOKENS] * len(waiters), 0.0)
    assert Counter(waiters[i].query.tenant for i in order[:10]) == {"busy": 5, "rested": 5}
