"""What a router of a simulated fleet learns to keep: the class of production, in the trace's terms.

A trace block stands for a block: it is cached, told and dropped as a whole. Replies are not kept:
nobody finds them here. Times are in ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controllers.prompt_use import PromptUse
from controllers.records import PrefixUse
from controllers.retention import Retention, RetentionPolicy, rule_of
from controllers.router_retention import RouterRetention
from controllers.simulation.booking_bus import router_name
from controllers.simulation.late import Late
from controllers.simulation.trace import TRACE_BLOCK, Request


class Keeper:
    """Of router number `index`. `late` None: the others learn nothing of its requests. `per`:
    blocks of a trace block."""

    def __init__(
        self, index: int, policy: RetentionPolicy, per: int, late: Late[PrefixUse] | None
    ) -> None:
        self._index = index
        self._policy = policy
        self._per = per
        self._late = late
        self._own = RouterRetention(router_name(index), TRACE_BLOCK)

    def set_workers(self, worker_to_blocks: Mapping[str, int]) -> None:
        """Those that may take requests, with their blocks."""
        self._own.set_workers({w: num // self._per for w, num in worker_to_blocks.items()})

    def lost_tokens(self, prompt: PromptUse, now: float) -> Mapping[str, float]:
        """What placement asks. `now` is in seconds."""
        return self._own.lost_tokens(prompt, now)

    def retention(self, request: Request, worker: str, now: float) -> Retention:
        """It, or a piece of it, goes to this worker now."""
        prompt = self.prompt_use(request)
        planned = self._own.retention(
            str(request.number), prompt, worker, now / 1e3, self._record_ms(now)
        )
        self._tell(planned.record, now)
        return planned.retention

    def finished(self, request: Request, num_cached_tokens: int | None, now: float) -> None:
        """`num_cached_tokens`: what it, or its first piece, found; None: it had no first token."""
        num_cached = None if num_cached_tokens is None else num_cached_tokens // TRACE_BLOCK
        record = self._own.finished(
            str(request.number), num_cached, now / 1e3, self._record_ms(now)
        )
        self._tell(record, now)

    def removed(self, worker: str, hashes: Sequence[int], now: float) -> None:
        """The log says so."""
        self._own.removed(worker, hashes, now / 1e3)

    def heard(self, record: PrefixUse, now: float) -> None:
        """Another router has told."""
        self._own.heard(record, now / 1e3)

    def tick(self, now: float) -> None:
        """At least once a second."""
        self._own.tick(now / 1e3)

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

    def _record_ms(self, now: float) -> int | None:
        """Of what is told; None: nobody is."""
        return None if self._late is None else int(now)

    def _tell(self, record: PrefixUse | None, now: float) -> None:
        if record is not None and self._late is not None:
            self._late.tell(self._index, record, now)
