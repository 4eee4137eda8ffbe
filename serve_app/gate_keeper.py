"""Makes requests wait at the replica's gate until the engine should start them.

Owns which requests were started and how much prefill they still owe, by what the router predicted
and by first tokens seen. Order and rule of starting are `controllers.gate`'s. One event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from controllers.gate import Gate
from serve_app.executors.base import ExecutorInfo, TokenChunk

# Prompts of at most this share of a full iteration's tokens may start together: the fixed part of
# an iteration is then most of what each would cost alone (1,536 of 8,192 tokens, by simulation).
SHARED_START_SHARE = 0.1875


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
    """`max_waiting` bounds what waits; more is Overloaded."""

    def __init__(
        self,
        info: ExecutorInfo,
        max_waiting: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gate = Gate(max_waiting, int(SHARED_START_SHARE * info.max_batched_tokens))
        self._max_running = info.max_batch_size
        self._clock = clock
        self._let_in: dict[str, asyncio.Future[None]] = {}
        self._uncached: dict[str, int] = {}  # of waiting and running requests
        self._owed: dict[str, int] = {}  # running requests without a first token
        self._running: set[str] = set()

    def waiting(self) -> tuple[int, int]:
        """Requests that wait, and their uncached tokens. Any thread."""
        return len(self._gate), self._gate.waiting_tokens

    def num_running(self) -> int:
        return len(self._running)

    @asynccontextmanager
    async def admit(self, request_id: str, uncached_tokens: int) -> AsyncIterator[Ticket]:
        """Wait for the turn; leaving the context (also by cancellation) gives the place back.

        Raises Overloaded at once when too many wait, ValueError for an id that is here already.
        """
        if request_id in self._running:
            raise ValueError(f"request {request_id!r} runs already")
        submitted = self._clock()
        self._gate.submit(request_id, uncached_tokens, submitted)
        self._uncached[request_id] = max(0, uncached_tokens)
        turn = asyncio.get_running_loop().create_future()
        self._let_in[request_id] = turn
        self._pump()
        try:
            await turn
            yield Ticket(self, request_id, (self._clock() - submitted) * 1e3)
        finally:
            self._leave(request_id)

    def prefill_ended(self, request_id: str) -> None:
        if self._owed.pop(request_id, None) is not None:
            self._pump()

    def _leave(self, request_id: str) -> None:
        self._gate.cancel(request_id)
        self._let_in.pop(request_id, None)
        self._uncached.pop(request_id, None)
        self._owed.pop(request_id, None)
        self._running.discard(request_id)
        self._pump()

    def _pump(self) -> None:
        num_free = self._max_running - len(self._running)
        if num_free <= 0 or not len(self._gate):
            return
        for request_id in self._gate.next(sum(self._owed.values()), num_free):
            self._running.add(request_id)
            self._owed[request_id] = self._uncached[request_id]
            turn = self._let_in.pop(request_id)
            if not turn.done():  # else cancelled just now: its own `_leave` comes, and pumps again
                turn.set_result(None)
