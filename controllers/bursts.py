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
    """What a request would have on the worker that would answer it soonest. `late_ms`: since it
    came, until its first token there. `left_ms`: until that must be there. `is_tied`: other workers
    have less of its prompt, or may not take it."""

    service_ms: float
    late_ms: float
    left_ms: float
    is_tied: bool


def last_ones_choose(
    order: list[int], wishes: Sequence[Wish], ready_ms: Sequence[float], is_longest_first: bool
) -> list[int]:
    """`order`: indices of `wishes`, shortest first; changed only if one of the last ones can start
    now beside everybody who should start before, and who waits instead has the time. `ready_ms`:
    until each worker has done what is tied to it and can start another one, by row; 0: now, inf:
    not all may go there.

    1. Tied ones first, in order, so that nobody takes their worker.
    2. As many as can start now of those that will be last on their worker, the latest first.
    3. Those that will have somebody behind them, in order. All of these can start as well, so
       unless `is_longest_first` they come before those of 2: only who gets which worker differs.
    4. The rest, the latest first.
    """
    tied = [i for i in order if wishes[i].is_tied]
    loose = [i for i in order if not wishes[i].is_tied]
    num_before = len(loose) - len({row for row, _ in _one_by_one(loose, wishes, ready_ms)})
    num_now = ready_ms.count(0.0) - num_before
    if num_now <= 0:
        return order
    before, last = loose[:num_before], loose[num_before:]
    last.sort(key=lambda i: wishes[i].late_ms, reverse=True)
    now, rest = last[:num_now], last[num_now:]
    ends_ms = [end_ms for _, end_ms in _one_by_one([*before, *last], wishes, ready_ms)]
    if any(ends_ms[at] > wishes[i].left_ms for at, i in enumerate(rest, num_before + num_now)):
        return order
    return [*tied, *now, *before, *rest] if is_longest_first else [*tied, *before, *now, *rest]


def _one_by_one(
    order: Sequence[int], wishes: Sequence[Wish], ready_ms: Sequence[float]
) -> list[tuple[int, float]]:
    """Worker and end of each if each one in turn goes to the one that is ready first."""
    heap = [(ready, row) for row, ready in enumerate(ready_ms)]
    heapq.heapify(heap)
    found = []
    for i in order:
        ready, row = heap[0]
        end_ms = ready + wishes[i].service_ms
        found.append((row, end_ms))
        heapq.heapreplace(heap, (end_ms, row))
    return found
