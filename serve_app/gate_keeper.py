"""Makes requests wait at the replica's gate until the engine should start them.

Owns what waits on the event loop for a decision of the gate, and tells the gate first tokens and
ends. Order, the rule of starting and who gives way are `controllers.gate`'s. One event loop.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from controllers.errors import ExecutorDead, Overtaken, WorkerFull
from controllers.fair_queue import Bounds
from controllers.gate import SHARED_START_SHARE, Gate, GateRules
from controllers.waiting import Waiting
from serve_app.executors.base import ExecutorInfo, TokenChunk

# A timer may fire a little before its time.
TIMER_SLACK_S = 0.001


class Standing(NamedTuple):
    """Whom a request comes from and what it may wait for; see `controllers.waiting`."""

    rank: int = 0
    tenant: str = "default"
    weight: float = 1.0
    max_wait_s: float | None = None
    max_ahead_tokens: int | None = None
    has_peers: bool = True


ORDINARY = Standing()


class Ticket:
    """A request that was let in; `on_chunk` must see every chunk of it."""

    def __init__(self, keeper: GateKeeper, request_id: str, waited_ms: float) -> None:
        self._keeper = keeper
        self._request_id = request_id
        self._waited_ms = waited_ms
        self._is_first = True

    def on_chunk(self, chunk: TokenChunk) -> TokenChunk:
        """The first chunk ends the request's prefill; its queue_ms gets the wait at the gate."""
        if not self._is_first:
            return chunk
        self._is_first = False
        self._keeper.prefill_ended(self._request_id)
        queue_ms = self._waited_ms + (chunk.queue_ms or 0.0)
        return msgspec.structs.replace(chunk, queue_ms=queue_ms)


class GateKeeper:
    """`bounds`: what may wait; more is refused. `max_kept_share`: see `controllers.places`;
    `gather_s`: see `controllers.gate`."""

    def __init__(
        self,
        info: ExecutorInfo,
        bounds: Bounds,
        max_kept_share: float = 0.0,
        gather_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gate = Gate(
            GateRules(
                bounds=bounds,
                shared_start_tokens=int(SHARED_START_SHARE * info.max_batched_tokens),
                max_running=info.max_batch_size,
                quantum_tokens=info.max_batched_tokens,
                max_kept_share=max_kept_share,
                gather_s=gather_s,
            )
        )
        self._clock = clock
        self._turns: dict[str, asyncio.Future[None]] = {}  # of those that wait
        self._gathering: asyncio.TimerHandle | None = None

    def waiting(self) -> tuple[int, int]:
        """Requests that wait, and their uncached tokens. Any thread."""
        return self._gate.num_waiting, self._gate.waiting_tokens

    def waiting_by_rank(self) -> dict[int, tuple[int, int]]:
        """The same by rank, 0 the best. Any thread."""
        return self._gate.waiting_by_rank()

    def num_running(self) -> int:
        return self._gate.num_running

    @asynccontextmanager
    async def admit(
        self, request_id: str, uncached_tokens: int, standing: Standing = ORDINARY
    ) -> AsyncIterator[Ticket]:
        """Wait for the turn; leaving the context (also by cancellation) gives the place back.

        Raises WorkerFull: at once when too many wait, later when a better rank or a tenant with
        less waiting needs the place, or when `max_wait_s` is over. Overtaken if more than
        `max_ahead_tokens` come before it. ExecutorDead when turned away. ValueError for an id that
        is here already.
        """
        submitted = self._clock()
        item = _waiting(request_id, uncached_tokens, standing, submitted)
        self._refuse_all(self._gate.submit(item), "gave way to one that comes first")
        turn = self._turns[request_id] = asyncio.get_running_loop().create_future()
        timer = self._call_at_deadline(standing.max_wait_s)
        self._pump()
        try:
            await turn
            yield Ticket(self, request_id, (self._clock() - submitted) * 1e3)
        finally:
            if timer is not None:
                timer.cancel()
            if turn.done() and not turn.cancelled():
                turn.exception()  # cancelled while it was being refused: nobody else looks at it
            self._turns.pop(request_id, None)
            self._gate.leave(request_id, self._clock())
            self._pump()

    def prefill_ended(self, request_id: str) -> None:
        if self._gate.prefill_ended(request_id):
            self._pump()

    def turn_away(self, why: str) -> None:
        """Who waits hears ExecutorDead and leaves, to be run elsewhere; who runs stays."""
        now = self._clock()
        for request_id, turn in list(self._turns.items()):
            del self._turns[request_id]
            self._gate.leave(request_id, now)
            if not turn.done():
                turn.set_exception(ExecutorDead(f"request {request_id!r} was not started: {why}"))

    def _call_at_deadline(self, max_wait_s: float | None) -> asyncio.TimerHandle | None:
        if max_wait_s is None:
            return None
        loop = asyncio.get_running_loop()
        return loop.call_later(max(0.0, max_wait_s) + TIMER_SLACK_S, self._pump)

    def _pump(self) -> None:
        now = self._clock()
        self._refuse_all(self._gate.expire(now), "waited as long as it may")
        for item in self._gate.start(now):
            turn = self._turns.pop(item.request_id)
            if not turn.done():  # else cancelled just now: its own end comes, and pumps again
                turn.set_result(None)
        for item in self._gate.hand_back(now):
            turn = self._turns.pop(item.request_id)
            if not turn.done():
                turn.set_exception(Overtaken(f"request {item.request_id!r} is not the next one"))
        self._pump_when_gathered(now)

    def _pump_when_gathered(self, now: float) -> None:
        until = self._gate.gathers_until(now)
        if until is not None and self._gathering is None:
            loop = asyncio.get_running_loop()
            self._gathering = loop.call_later(until - now + TIMER_SLACK_S, self._gathered)

    def _gathered(self) -> None:
        self._gathering = None
        self._pump()

    def _refuse_all(self, items: list[Waiting], why: str) -> None:
        now = self._clock()
        for item in items:
            turn = self._turns.pop(item.request_id)
            retry_after_s = self._gate.retry_after_s(item.rank, now)
            if not turn.done():
                turn.set_exception(WorkerFull(f"request {item.request_id!r} {why}", retry_after_s))


def _waiting(
    request_id: str, uncached_tokens: int, standing: Standing, submitted_s: float
) -> Waiting:
    max_wait_s, max_ahead = standing.max_wait_s, standing.max_ahead_tokens
    return Waiting(
        request_id=request_id,
        uncached_tokens=max(0, uncached_tokens),
        submitted_s=submitted_s,
        rank=standing.rank,
        tenant=standing.tenant,
        weight=standing.weight,
        deadline_s=math.inf if max_wait_s is None else submitted_s + max_wait_s,
        max_ahead_tokens=math.inf if max_ahead is None else max_ahead,
        has_peers=standing.has_peers,
    )
