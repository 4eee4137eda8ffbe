"""Requests of other ingresses, learned from as if they were one's own.

Owns the records that ingresses exchange about prompts, and the others' requests under way. Their
promises are not told: whoever knows the same requests plans nearly the same, so each ingress plans
the others' requests too and books what it would have promised. Knows no bus, clock or thread; the
caller serialises.

1. A record that was applied before, or is this ingress's own, changes nothing.
2. A request whose end nobody tells of counts as ended after MAX_RUNNING_S.
3. A prompt in blocks of another size is another model's.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import structs

from controllers.errors import EventError
from controllers.events import SCHEMA
from controllers.learned_retention import LearnedRetention, Use
from controllers.prompt_use import PromptUse
from controllers.records import PrefixUse
from controllers.retention_plans import Plan

SENT, DONE = "sent", "done"
MAX_RUNNING_S = 120.0  # what runs for longer has only its durations begin too early
MAX_RUNNING = 50_000
MAX_ROUTERS = 1024


@dataclass
class SharedCounters:
    """Since the start of the process."""

    num_sent: int = 0  # others' requests that were learned from
    num_done: int = 0
    num_missing: int = 0  # records in holes
    num_unknown: int = 0  # ends of requests that are not known, or no longer
    num_given_up: int = 0  # requests whose end was never told
    num_refused: int = 0  # of another block size or a state that nobody knows


class SharedUses:
    """The others' requests in `learned`. `router`: this ingress."""

    def __init__(self, learned: LearnedRetention, router: str, block_size: int) -> None:
        self.counters = SharedCounters()
        self._learned = learned
        self._router = router
        self._block_size = block_size
        self._seq_of: OrderedDict[str, int] = OrderedDict()
        self._running: OrderedDict[str, tuple[float, Use]] = OrderedDict()

    @property
    def num_running(self) -> int:
        return len(self._running)

    def apply(self, record: PrefixUse, at: float) -> None:
        """It happened at `at`, of the caller's clock. Raises EventError, and changes nothing, if
        the hashes are damaged."""
        if record.router == self._router or record.seq <= self._seq_of.get(record.router, -1):
            return
        prompt = prompt_of(record) if record.state == SENT and record.block_size else None
        self._hear(record)
        self.give_up(at)
        self._learned.fit_if_due(at)
        if prompt is not None and prompt.block_size != self._block_size:
            self.counters.num_refused += 1
        elif record.state == SENT:
            self._sent(record, prompt, at)
        elif record.state == DONE:
            self._done(record, at)
        else:
            self.counters.num_refused += 1

    def give_up(self, now: float) -> None:
        """End what has run for too long: its ingress may be gone, and with it the news."""
        running = self._running
        while running:
            request_id, (since, use) = next(iter(running.items()))
            if since > now - MAX_RUNNING_S and len(running) < MAX_RUNNING:
                return
            del running[request_id]
            self.counters.num_given_up += 1
            self._learned.finished(use, None, now)

    def _hear(self, record: PrefixUse) -> None:
        known = self._seq_of
        if record.router in known:
            self.counters.num_missing += record.seq - known[record.router] - 1
        known[record.router] = record.seq
        known.move_to_end(record.router)
        if len(known) > MAX_ROUTERS:
            known.popitem(last=False)

    def _sent(self, record: PrefixUse, prompt: PromptUse | None, at: float) -> None:
        known = self._running.get(record.request_id)
        if known is not None:
            use = known[1]
        elif prompt is not None:
            use = self._learned.use(prompt, at)
            self._running[record.request_id] = (at, use)
            self.counters.num_sent += 1
        else:
            self.counters.num_unknown += 1
            return
        self._learned.promise(use, record.worker, at)

    def _done(self, record: PrefixUse, at: float) -> None:
        known = self._running.pop(record.request_id, None)
        if known is None:
            self.counters.num_unknown += 1
        else:
            self.counters.num_done += 1
            self._learned.finished(known[1], record.num_cached_blocks, at)


class UseRecords:
    """What this ingress tells of its own requests."""

    def __init__(self, router: str) -> None:
        self._router = router
        self._seq = -1

    def planned(self, request_id: str, plan: Plan, ts_ms: int) -> PrefixUse:
        """It was sent to the plan's worker."""
        if plan.is_first:
            return self.sent(request_id, plan.worker, plan.use.prompt, ts_ms)
        return self.sent_again(request_id, plan.worker, ts_ms)

    def sent(self, request_id: str, worker: str, prompt: PromptUse, ts_ms: int) -> PrefixUse:
        return structs.replace(
            self.sent_again(request_id, worker, ts_ms),
            request_type=prompt.request_type,
            tenant=prompt.tenant,
            num_tokens=prompt.num_tokens,
            block_size=prompt.block_size,
            hashes=digits_of(prompt.hashes),
            max_retention_priority=prompt.ceiling,
            is_kept=prompt.is_kept,
        )

    def sent_again(self, request_id: str, worker: str, ts_ms: int) -> PrefixUse:
        """After a failure, to another worker."""
        return self._short(request_id, SENT, worker, ts_ms, None)

    def done(
        self, request_id: str, worker: str, num_cached_blocks: int | None, ts_ms: int
    ) -> PrefixUse:
        return self._short(request_id, DONE, worker, ts_ms, num_cached_blocks)

    def _short(
        self, request_id: str, state: str, worker: str, ts_ms: int, num_cached: int | None
    ) -> PrefixUse:
        return PrefixUse(
            schema=SCHEMA,
            ts_ms=ts_ms,
            router=self._router,
            seq=self._next(),
            request_id=request_id,
            state=state,
            worker=worker,
            num_cached_blocks=num_cached,
        )

    def _next(self) -> int:
        self._seq += 1
        return self._seq


def prompt_of(record: PrefixUse) -> PromptUse:
    """Raises EventError for damaged hashes."""
    return PromptUse(
        hashes=hashes_of(record.hashes),
        num_tokens=record.num_tokens,
        block_size=record.block_size,
        request_type=record.request_type,
        tenant=record.tenant,
        ceiling=record.max_retention_priority,
        is_kept=record.is_kept,
    )


def digits_of(hashes: Sequence[int]) -> str:
    """16 hex digits a hash, one after the other."""
    return struct.pack(f">{len(hashes)}Q", *hashes).hex()


def hashes_of(digits: str) -> list[int]:
    """Inverse of digits_of. Raises EventError."""
    num, rest = divmod(len(digits), 16)
    try:
        raw = bytes.fromhex(digits)
    except ValueError as error:
        raise EventError(f"hashes are not hexadecimal: {digits[:40]!r}") from error
    if rest or len(raw) != 8 * num:
        raise EventError(f"hashes must have 16 hex digits each: {digits[:40]!r}")
    return list(struct.unpack(f">{num}Q", raw))
