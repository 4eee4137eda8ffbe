"""Learned retention: priority and duration by what requests were seen to ask for again.

Owns the classes of runs and the order of events: a use, its promises, its end, evictions. Knows no
engine, clock or thread; the caller serialises. It asks engines for nothing but what they can do: a
priority and a duration for a range of tokens, said when a request comes, of its own blocks.

1. Promises never rise along a prefix: a run is promised at least what lies behind it is.
2. Unpromised blocks are left at 35, where promises fall to when they end, or at 0 if they are
   worthless; neither has a duration.
3. A priority ranks. What is promised is bounded by room, and nothing is ever pinned.
4. A run that other prefixes continue, or that another tenant was promised, is not lowered.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from controllers.promising import promise
from controllers.prompt_use import PromptUse, retention_of
from controllers.retention import Retention
from controllers.retention_worker import RetentionWorker
from controllers.survival import MAX_IDLE_S, Survival
from controllers.touch_tree import JOINED_FROM_USES, TouchedRun, TouchTree

FIT_EVERY_S = 10.0
MAX_BLOCKS = 2_000_000  # remembered, of all workers together; about 100 bytes each


@dataclass
class Use:
    """A request under way. `worker` "": promised nothing yet. `group`: whose floor counts."""

    prompt: PromptUse
    path: list[TouchedRun]
    group: tuple[str, str]
    worker: str = ""
    num_refused: int = 0  # blocks that were worth a promise, for want of room


class LearnedRetention:
    """One for all workers of a fleet: they share what is learned, not room and promises."""

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self.survival = Survival()
        self._tree = TouchTree(self.survival, max_blocks)
        self._workers: dict[str, RetentionWorker] = {}
        self._next_fit_s = -math.inf

    @property
    def num_blocks(self) -> int:
        """Remembered."""
        return len(self._tree.run_of)

    @property
    def workers(self) -> Collection[RetentionWorker]:
        return self._workers.values()

    def run_of(self, block_hash: int) -> TouchedRun | None:
        return self._tree.run_of.get(block_hash)

    def known_runs(self, hashes: Sequence[int]) -> list[tuple[TouchedRun, int]]:
        """What the prompt begins with, and how many blocks of each; no use of it."""
        return self._tree.known(hashes)

    def set_workers(self, num_blocks: Mapping[str, int]) -> None:
        """Worker -> blocks of its cache. Others are forgotten; an equal one's books stay."""
        known = self._workers
        self._workers = {
            name: known[name]
            if name in known and known[name].room.num_blocks == num
            else RetentionWorker(name, num)
            for name, num in num_blocks.items()
        }

    def fit_if_due(self, now: float) -> bool:
        """Milliseconds every 10 s, apart from the requests."""
        if now < self._next_fit_s:
            return False
        self._next_fit_s = now + FIT_EVERY_S
        self.survival.fit(now)
        self._tree.forget(now - MAX_IDLE_S)
        return True

    def use(self, prompt: PromptUse, now: float) -> Use:
        """A request comes."""
        survival = self.survival
        path = self._tree.use(prompt.hashes, now)
        known: str | None = None
        for run in path:
            if run.touch is not None:
                survival.reuse(run.touch, now)
                run.touch = None
            known = run.vote(prompt.request_type, known)
            run.class_id = survival.class_of(run.label, prompt.tenant, _kind(run))
        label = path[-1].label if path else prompt.request_type
        return Use(prompt, path, (label, prompt.tenant))

    def promise(self, use: Use, worker: str, now: float) -> Retention:
        """It goes to this worker, after a failure perhaps to another one. To an unknown worker
        nothing is said of what to keep."""
        known = self._workers.get(worker)
        if known is None:
            return Retention()
        if use.worker:
            self._start_promises(use, now)
        use.worker = worker
        boost = known.floors.boost(use.group)
        promised = promise(known, self.survival, use.prompt, use.path, boost, now)
        use.num_refused = promised.num_refused
        return retention_of(promised.stretches, use.prompt)

    def finished(self, use: Use, num_cached_blocks: int | None, now: float) -> None:
        """It has ended and its blocks were released. None: nobody knows what it found cached."""
        for run in use.path:
            if run.touch is not None:
                self.survival.drop(run.touch)
            run.touch = self.survival.touch(now, run.class_id)
        self._start_promises(use, now)
        worker = self._workers.get(use.worker)
        if worker is None:
            return
        num_lru_hits = worker.shadow.use(use.path, now)
        if num_cached_blocks is not None:
            prompt = use.prompt
            reusable = (prompt.num_tokens - 1) // prompt.block_size  # the last token is computed
            hits = (num_cached_blocks, min(num_lru_hits, reusable))
            worker.floors.count(use.group, len(prompt.hashes), *hits)

    def removed(self, worker: str, hashes: Iterable[int], now: float) -> None:
        """The worker's cache lost these blocks."""
        known = self._workers.get(worker)
        if known is None:
            return
        last: TouchedRun | None = None
        num = 0
        run_of = self._tree.run_of
        for block_hash in hashes:
            run = run_of.get(block_hash)
            if run is not last:
                self._evicted(known, last, num, now)
                last, num = run, 0
            num += 1
        self._evicted(known, last, num, now)

    def _evicted(
        self, worker: RetentionWorker, run: TouchedRun | None, num: int, now: float
    ) -> None:
        grant = None if run is None else run.grants.get(worker.name)
        if run is not None and grant is not None:
            worker.room.evicted(grant, num)
            worth = self.survival.worth(run.class_id, now - run.last_used_s)
            worker.evicted(worth, grant.boost, num)

    def _start_promises(self, use: Use, now: float) -> None:
        worker = self._workers.get(use.worker)
        if worker is None:
            return
        for run in use.path:
            grant = run.grants.get(use.worker)
            if grant is not None and math.isinf(grant.until_s):
                worker.room.start(grant, now)


def _kind(run: TouchedRun) -> str | int:
    if run.is_hub:
        return "hub"
    return min(run.num_uses, JOINED_FROM_USES)
