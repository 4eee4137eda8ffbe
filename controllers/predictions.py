"""Blocks that a worker is expected to hold soon, because a request with them was just sent there.

They bridge the time until the worker's own events arrive. Knows neither the table nor costs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple


class _Sent(NamedTuple):
    expires_s: float
    worker: str
    hashes: Sequence[int]


class _Expected(NamedTuple):
    """Of one worker in one epoch: block hash -> time until which it is expected."""

    epoch: int | None
    hash_to_expiry_s: dict[int, float]


class Predictions:
    """Memory is bounded by the blocks sent within `ttl_s`."""

    def __init__(self, ttl_s: float) -> None:
        self.ttl_s = ttl_s
        self._workers: dict[str, _Expected] = {}
        self._first_to_workers: dict[int, dict[str, None]] = {}
        self._sent: deque[_Sent] = deque()

    def __len__(self) -> int:
        """Blocks expected, over all workers."""
        return sum(len(e.hash_to_expiry_s) for e in self._workers.values())

    def add(
        self, worker: str, epoch: int | None, hashes: Sequence[int], depth: int, now: float
    ) -> None:
        """Expect the prompt's blocks from `depth` on until now + ttl_s; those before are there.

        An epoch other than the known one (None: unknown) means that the engine was restarted: what
        was expected before is gone.
        """
        if depth >= len(hashes):
            return
        expected = self._workers.get(worker)
        if expected is None or expected.epoch != epoch:
            expected = self._workers[worker] = _Expected(epoch, {})
        expires_s, run = now + self.ttl_s, hashes[depth:]
        expected.hash_to_expiry_s.update(dict.fromkeys(run, expires_s))
        self._sent.append(_Sent(expires_s, worker, run))
        if depth == 0:
            self._first_to_workers.setdefault(run[0], {})[worker] = None

    def may_start_with(self, first: int) -> Collection[str]:
        """Workers that may be expected to hold a prompt's first block, in the order of sending."""
        return self._first_to_workers.get(first, ())

    def extend(
        self, worker: str, epoch: int | None, hashes: Sequence[int], depth: int, now: float
    ) -> int:
        """Leading blocks of `hashes` on the worker, if the first `depth` are there already."""
        expected = self._workers.get(worker)
        if expected is None or expected.epoch != epoch:
            return depth
        expiry_of = expected.hash_to_expiry_s.get
        while depth < len(hashes) and expiry_of(hashes[depth], now) > now:
            depth += 1
        return depth

    def forget(self, worker: str) -> None:
        """The worker is gone."""
        self._workers.pop(worker, None)

    def sweep(self, now: float) -> None:
        """Drop what has expired."""
        while self._sent and self._sent[0].expires_s <= now:
            _, worker, hashes = self._sent.popleft()
            expected = self._workers.get(worker)
            if expected is None or self._drop(expected.hash_to_expiry_s, hashes, now):
                self._drop_first(hashes[0], worker)
            if expected is not None and not expected.hash_to_expiry_s:
                del self._workers[worker]

    def _drop(self, hash_to_expiry_s: dict[int, float], hashes: Sequence[int], now: float) -> bool:
        """True if the first one is gone; blocks that were sent again later stay."""
        for block_hash in hashes:
            if hash_to_expiry_s.get(block_hash, now + 1.0) <= now:
                del hash_to_expiry_s[block_hash]
        return hashes[0] not in hash_to_expiry_s

    def _drop_first(self, first: int, worker: str) -> None:
        workers = self._first_to_workers.get(first)
        if workers is not None:
            workers.pop(worker, None)
            if not workers:
                del self._first_to_workers[first]
