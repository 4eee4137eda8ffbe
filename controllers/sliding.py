"""Sums over the last seconds, by name. Times are in seconds, monotonic."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable

NUM_BUCKETS = 10


class SlidingSums:
    """What was added in the last `window_s`, forgotten in steps of a tenth of it."""

    def __init__(self, window_s: float) -> None:
        self._bucket_s = window_s / NUM_BUCKETS
        self._buckets: deque[tuple[int, Counter[Hashable]]] = deque()

    def add(self, name: Hashable, amount: float, now: float) -> None:
        index = int(now / self._bucket_s)
        if not self._buckets or self._buckets[-1][0] < index:
            self._buckets.append((index, Counter()))
            self._forget(index)
        self._buckets[-1][1][name] += amount  # type: ignore[assignment]  # sums are floats

    def total(self, name: Hashable, now: float) -> float:
        self._forget(int(now / self._bucket_s))
        return float(sum(bucket[name] for _, bucket in self._buckets))

    def per_s(self, name: Hashable, now: float) -> float:
        """The total over the time it covers."""
        return self.total(name, now) / self.span_s(now)

    def span_s(self, now: float) -> float:
        """Nine whole steps and the part of the present one."""
        return (NUM_BUCKETS - 1) * self._bucket_s + now % self._bucket_s

    def names(self, now: float) -> set[Hashable]:
        """With an amount other than 0."""
        self._forget(int(now / self._bucket_s))
        return {name for _, bucket in self._buckets for name, amount in bucket.items() if amount}

    def _forget(self, index: int) -> None:
        while self._buckets and self._buckets[0][0] <= index - NUM_BUCKETS:
            self._buckets.popleft()
