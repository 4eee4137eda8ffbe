"""Learned retention as one router has it: its requests, what the others tell, what the log says.

Puts together what is learned, the plans under way, what was refused and the others' requests. Knows
no lock, clock or bus: the caller serialises, and carries the records that come of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from controllers.learned_retention import LearnedRetention
from controllers.prompt_use import PromptUse
from controllers.records import PrefixUse
from controllers.refusals import Refusals
from controllers.retention import Retention
from controllers.retention_plans import RetentionPlans
from controllers.shared_uses import SharedUses, UseRecords


class Planned(NamedTuple):
    """`record`: for the other routers. None: nobody listens, or there is nothing new to tell."""

    retention: Retention
    record: PrefixUse | None


class RouterRetention:
    """`router`: its id. `block_size`: what others' prompts must have. `ts_ms` in calls: the wall
    time of a record; None: nobody listens."""

    def __init__(self, router: str, block_size: int) -> None:
        self.learned = LearnedRetention()
        self.plans = RetentionPlans(self.learned)
        self.shared = SharedUses(self.learned, router, block_size)
        self._refusals = Refusals(self.learned)
        self._records = UseRecords(router)

    def lost_tokens(self, prompt: PromptUse, now: float) -> dict[str, float]:
        """What placement asks when it chooses: by worker, of the prompt, expected to be computed
        again for want of room to keep it."""
        return self._refusals.lost_tokens(prompt, now)

    def retention(
        self, request_id: str, prompt: PromptUse, worker: str, now: float, ts_ms: int | None
    ) -> Planned:
        """It, or a piece of it, goes to this worker now; after a failure, to the next one. Pieces
        of a prompt that go to one worker are parts of one plan."""
        known = self.plans.current(request_id, worker)
        if known is not None:
            return Planned(known, None)
        plan = self.plans.make(request_id, prompt, worker, now)
        record = None if ts_ms is None else self._records.planned(request_id, plan, ts_ms)
        return Planned(plan.retention, record)

    def finished(
        self, request_id: str, num_cached_blocks: int | None, now: float, ts_ms: int | None
    ) -> PrefixUse | None:
        """`num_cached_blocks`: what it, or its first piece, found; None: nobody knows. Of a request
        that came to no worker there is nothing to learn or tell."""
        plan = self.plans.end(request_id, num_cached_blocks, now)
        if plan is None or ts_ms is None:
            return None
        return self._records.done(request_id, plan.worker, num_cached_blocks, ts_ms)

    def removed(self, worker: str, hashes: Sequence[int], now: float) -> None:
        """The log says so."""
        self._refusals.removed(worker, hashes, now)
        self.learned.removed(worker, hashes, now)

    def heard(self, record: PrefixUse, at: float) -> None:
        """Another router has told. Raises EventError, and changes nothing, if it is damaged."""
        self.shared.apply(record, at)

    def tick(self, now: float) -> None:
        """At least once a second, apart from the requests."""
        self.learned.fit_if_due(now)
        self.shared.give_up(now)

    def set_workers(self, num_blocks: Mapping[str, int]) -> None:
        """Worker -> blocks of its cache, of those that may take requests."""
        self.learned.set_workers(num_blocks)
