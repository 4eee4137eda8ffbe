"""Blocks that a worker is expected to hold soon, because a request with them was just sent there.

They bridge the time until the worker's own events arrive. Knows neither the table nor costs.

A hash names a whole prefix, so blocks can only be found again by a prompt with the same first
block: what was sent is kept by that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TypeAlias


class _Sent:
    """Blocks of prompts that begin alike, sent to one worker within one generation."""

    __slots__ = ("_runs", "_until_s", "epoch")

    def __init__(self, epoch: int | None) -> None:
        self.epoch = epoch
        self._runs: list[tuple[Sequence[int], float]] = []  # not yet in the map
        self._until_s: dict[int, float] = {}

    def add(self, run: Sequence[int], until_s: float) -> None:
        self._runs.append((run, until_s))

    @property
    def until_s(self) -> dict[int, float]:
        """Block hash -> time until which it is expected. Filled when somebody asks: most blocks
        expire before."""
        for run, until_s in self._runs:
            for block_hash in run:  # faster than update(dict.fromkeys(...))
                self._until_s[block_hash] = until_s
        self._runs.clear()
        return self._until_s


_Generation: TypeAlias = dict[int, dict[str, _Sent]]  # first block -> worker


class Predictions:
    """Memory is bounded by the blocks sent within twice `ttl_s`: they are dropped a generation at
    a time, when all of it has expired, which costs nothing by block."""

    def __init__(self, ttl_s: float) -> None:
        self.ttl_s = ttl_s
        self._turns_at_s = 0.0  # the next generation begins
        self._new: _Generation = {}
        self._old: _Generation = {}

    def __len__(self) -> int:
        """Blocks kept, over all workers."""
        generations = (*self._old.values(), *self._new.values())
        return sum(len(sent.until_s) for workers in generations for sent in workers.values())

    def add(
        self, worker: str, epoch: int | None, hashes: Sequence[int], depth: int, now: float
    ) -> None:
        """Expect the prompt's blocks from `depth` on until now + ttl_s; those before are there.

        An epoch other than the known one (None: unknown) means that the engine was restarted: what
        was expected before is gone.
        """
        if depth >= len(hashes):
            return
        self.sweep(now)
        workers = self._new.setdefault(hashes[0], {})
        sent = workers.get(worker)
        if sent is None or sent.epoch != epoch:
            sent = workers[worker] = _Sent(epoch)
        sent.add(hashes[depth:], now + self.ttl_s)

    def retract(self, worker: str, hashes: Sequence[int], depth: int) -> None:
        """A prompt that was sent there will not compute its blocks from `depth` on."""
        if depth >= len(hashes):
            return
        for generation in (self._old, self._new):
            sent = generation.get(hashes[0], {}).get(worker)
            if sent is not None:
                sent.add(hashes[depth:], -math.inf)

    def of_first(self, first: int) -> Collection[str]:
        """Workers that were sent prompts with this first block."""
        old, new = self._old.get(first), self._new.get(first)
        return {**old, **new} if old and new else old or new or ()

    def extend(
        self, worker: str, epoch: int | None, hashes: Sequence[int], depth: int, now: float
    ) -> int:
        """Leading blocks of `hashes` on the worker, if the first `depth` are there already."""
        if depth >= len(hashes):
            return depth
        until_new = self._until_s(self._new, hashes[0], worker, epoch).get
        until_old = self._until_s(self._old, hashes[0], worker, epoch).get
        while depth < len(hashes):
            block_hash = hashes[depth]
            if until_new(block_hash, now) <= now and until_old(block_hash, now) <= now:
                break
            depth += 1
        return depth

    def forget(self, worker: str) -> None:
        """The worker is gone."""
        for workers in (*self._old.values(), *self._new.values()):
            workers.pop(worker, None)

    def sweep(self, now: float) -> None:
        """Drop a generation that has expired; every `ttl_s` a new one begins."""
        if now < self._turns_at_s:
            return
        is_all_over = now >= self._turns_at_s + self.ttl_s
        self._turns_at_s = now + self.ttl_s
        self._old, self._new = ({} if is_all_over else self._new), {}

    def _until_s(
        self, generation: _Generation, first: int, worker: str, epoch: int | None
    ) -> dict[int, float]:
        workers = generation.get(first)
        sent = workers.get(worker) if workers else None
        return sent.until_s if sent is not None and sent.epoch == epoch else {}
