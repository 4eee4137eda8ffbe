"""Work that has not started, by worker and rank: what a request of a better rank will pass.

The router's own and what other routers tell exactly; of the rest a running mean of what the
workers' gates report, as in `books`. Knows no costs. Times are in ms.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from controllers.books import OTHERS_GAIN
from controllers.numbers import Floats

# Requests and their uncached tokens.
Amount: TypeAlias = tuple[float, float]
NOTHING: Amount = (0.0, 0.0)


class Passed(NamedTuple):
    """By row of the books: what waits there and goes after the request that is placed."""

    own_requests: Floats | float
    own_tokens: Floats | float
    shared_requests: Floats | float
    shared_tokens: Floats | float
    others_requests: Floats | float
    others_tokens: Floats | float

    def at(self, row: int) -> Passed:
        """On one worker, as numbers."""
        if self is PASSES_NONE:
            return self
        return Passed(*[v if isinstance(v, float) else float(v[row]) for v in self])


PASSES_NONE = Passed(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class RankBook:
    """Empty as long as everything is of one rank."""

    def __init__(self) -> None:
        self._own: dict[str, dict[int, Amount]] = defaultdict(dict)
        self._shared: dict[str, Mapping[int, Amount]] = {}
        self._others: dict[str, dict[int, Amount]] = defaultdict(dict)
        self._reported_at_ms: dict[str, float] = {}
        # Rank -> entries above that have it: a look at all workers takes 39 us with 64 of them.
        self._num_at: Counter[int] = Counter()

    def book(self, worker: str, rank: int, tokens: float, num_requests: int = 1) -> None:
        """-1 requests: one has started, or never will."""
        ranks = self._own[worker]
        requests, total = ranks.get(rank, NOTHING)
        if rank not in ranks:
            self._num_at[rank] += 1
        ranks[rank] = (requests + num_requests, total + num_requests * tokens)
        if ranks[rank][0] <= 0:
            del ranks[rank]
            self._uncount((rank,))

    def share(self, worker: str, ranks: Mapping[int, Amount]) -> None:
        """Rank -> what other routers have waiting there now."""
        self._uncount(self._shared.get(worker, ()))
        self._shared[worker] = dict(ranks)
        self._num_at.update(ranks.keys())

    def forget(self, worker: str) -> None:
        for book in (self._own, self._shared, self._others):
            self._uncount(book.pop(worker, ()))
        self._reported_at_ms.pop(worker, None)

    def report(self, worker: str, queued: Mapping[int, tuple[int, int]], now_ms: float) -> None:
        """What waits at the worker's gate by rank, as it says."""
        before_ms = self._reported_at_ms.get(worker, -math.inf)
        self._reported_at_ms[worker] = now_ms
        gain = 1.0 - (1.0 - OTHERS_GAIN) ** max(0.0, (now_ms - before_ms) / 1000.0)
        own, means = self._own[worker], self._others[worker]
        shared = self._shared.get(worker, {})
        self._num_at.update(queued.keys() - means.keys())
        for rank in {*means, *queued}:
            means[rank] = tuple(
                mean + gain * (max(0.0, total - sent - told) - mean)
                for mean, total, sent, told in zip(
                    means.get(rank, NOTHING),
                    queued.get(rank, NOTHING),
                    own.get(rank, NOTHING),
                    shared.get(rank, NOTHING),
                    strict=True,
                )
            )

    def passed_by(self, rank: int, workers: Sequence[str]) -> Passed:
        """What waits for worse ranks than this one."""
        if not self._has_worse(rank):
            return PASSES_NONE
        books = (self._own, self._shared, self._others)
        amounts = [[_worse(book.get(worker), rank) for worker in workers] for book in books]
        return Passed(*(column for book in amounts for column in np.array(book).T))

    def _has_worse(self, rank: int) -> bool:
        return max(self._num_at, default=rank) > rank

    def _uncount(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self._num_at[rank] -= 1
            if not self._num_at[rank]:
                del self._num_at[rank]


def _worse(amounts: Mapping[int, Amount] | None, rank: int) -> Amount:
    found = [amount for r, amount in (amounts or {}).items() if r > rank]
    return sum(requests for requests, _ in found), sum(tokens for _, tokens in found)
