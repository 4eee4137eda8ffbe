"""What the routers of a simulated fleet learn to keep: the classes of production, one set for each.

A trace block stands for a block: it is cached, told and dropped as a whole. Replies are not kept:
nobody finds them here. Times are in ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controllers.events import PrefixUse, ints_of
from controllers.learned_retention import LearnedRetention
from controllers.prompt_use import PromptUse
from controllers.refusals import Refusals
from controllers.retention import Retention, RetentionPolicy, rule_of
from controllers.retention_plans import RetentionPlans
from controllers.shared_uses import SharedUses, UseRecords
from controllers.simulation.booking_bus import router_name
from controllers.simulation.late import Late
from controllers.simulation.trace import TRACE_BLOCK, Request


class Keeper:
    """Of router number `index`. `late` None: the others learn nothing of its requests. `per`:
    blocks of a trace block."""

    def __init__(
        self, index: int, policy: RetentionPolicy, per: int, late: Late[PrefixUse] | None
    ) -> None:
        self.learned = LearnedRetention()
        self._index = index
        self._policy = policy
        self._per = per
        self._late = late
        self._refusals = Refusals(self.learned)
        self._plans = RetentionPlans(self.learned)
        self._records = UseRecords(router_name(index))
        self._shared = SharedUses(self.learned, router_name(index), TRACE_BLOCK)

    def set_workers(self, worker_to_blocks: Mapping[str, int]) -> None:
        """Those that may take requests, with their blocks."""
        self.learned.set_workers({w: num // self._per for w, num in worker_to_blocks.items()})

    def lost_tokens(self, prompt: PromptUse, now: float) -> Mapping[str, float]:
        """What placement asks. `now` is in seconds."""
        return self._refusals.lost_tokens(prompt, now)

    def retention(self, request: Request, worker: str, now: float) -> Retention:
        """It, or a piece of it, goes to this worker now."""
        request_id = str(request.number)
        known = self._plans.current(request_id, worker)
        if known is not None:
            return known
        plan = self._plans.make(request_id, self.prompt_use(request), worker, now / 1e3)
        if self._late is not None:
            record = self._records.planned(request_id, plan, int(now))
            self._late.tell(self._index, record, now)
        return plan.retention

    def finished(self, request: Request, num_cached_tokens: int | None, now: float) -> None:
        """`num_cached_tokens`: what it, or its first piece, found; None: it had no first token."""
        request_id, num_cached = str(request.number), None
        if num_cached_tokens is not None:
            num_cached = num_cached_tokens // TRACE_BLOCK
        plan = self._plans.end(request_id, num_cached, now / 1e3)
        if plan is not None and self._late is not None:
            record = self._records.done(request_id, plan.worker, num_cached, int(now))
            self._late.tell(self._index, record, now)

    def removed(self, worker: str, hexes: Sequence[str], now: float) -> None:
        """The log says so."""
        hashes = ints_of(hexes)
        self._refusals.removed(worker, hashes, now / 1e3)
        self.learned.removed(worker, hashes, now / 1e3)

    def heard(self, record: PrefixUse, now: float) -> None:
        """Another router has told."""
        self._shared.apply(record, now / 1e3)

    def tick(self, now: float) -> None:
        """At least once a second."""
        self.learned.fit_if_due(now / 1e3)
        self._shared.give_up(now / 1e3)

    def prompt_use(self, request: Request) -> PromptUse:
        rule = rule_of(self._policy, request.request_type)
        return PromptUse(
            hashes=[number * self._per for number in request.trace_blocks],
            num_tokens=request.num_tokens,
            block_size=TRACE_BLOCK,
            request_type=request.request_type,
            tenant=request.tenant,
            is_kept=rule.current.retention_priority != 0,
            keeps_reply=False,
        )
