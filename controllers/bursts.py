"""Which of the requests that come together should have an idle worker for itself.

Shortest first gives the least mean time to the first token. But whoever is the last one on its
worker delays nobody: which of those gets which worker changes nothing about the mean. So of them
the one that would be answered last chooses first, instead of waiting for the shortest ones that
would otherwise be put before it. Knows neither tenants nor ranks.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

MOST_PER_WORKER = 2  # with more that wait for each worker the last ones are far from starting


class Wish(NamedTuple):
    """`row`: the worker that would answer it soonest, with `service_ms` of work there. `late_ms`:
    since it came, until its first token there. `is_tied`: other workers have less of its prompt."""

    row: int
    service_ms: float
    late_ms: float
    is_tied: bool


def last_ones_choose(
    order: list[int], wishes: Sequence[Wish], ready_ms: Sequence[float]
) -> list[int]:
    """`order`: indices of `wishes`, shortest first; changed only if one of the last ones can start
    now beside everybody who should start before. `ready_ms`: until each worker can start one, by
    row; 0: now.

    1. Tied ones first, in order, so that nobody takes their worker.
    2. As many as can start now of those that will be last on their worker, the latest first.
    3. Those that will have somebody behind them, in order.
    4. The rest, the latest first.
    """
    tied = [i for i in order if wishes[i].is_tied]
    loose = [i for i in order if not wishes[i].is_tied]
    ready = list(ready_ms)
    for i in tied:
        ready[wishes[i].row] += wishes[i].service_ms
    num_before = len(loose) - _num_used([wishes[i].service_ms for i in loose], ready)
    num_now = ready.count(0.0) - num_before
    if num_now <= 0:
        return order
    before, last = loose[:num_before], loose[num_before:]
    last.sort(key=lambda i: wishes[i].late_ms, reverse=True)
    return [*tied, *last[:num_now], *before, *last[num_now:]]


def _num_used(services_ms: Sequence[float], ready_ms: Sequence[float]) -> int:
    """Workers that have something to do if each one in turn goes to the one that is ready first."""
    heap = [(ready, row) for row, ready in enumerate(ready_ms)]
    heapq.heapify(heap)
    used = set()
    for service_ms in services_ms:
        ready, row = heap[0]
        used.add(row)
        heapq.heapreplace(heap, (ready + service_ms, row))
    return len(used)
