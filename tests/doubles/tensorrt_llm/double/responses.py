"""What the engine's thread says of a request, on its way to the one who waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from serve_app.engine.sampler import Logprobs


@dataclass(frozen=True)
class Response:
    """New tokens of one sequence. `finish`: end_id, stop_words, length or cancelled; `is_final`:
    the last response of the whole request."""

    index: int
    token_ids: list[int]
    logprobs: list[Logprobs]
    finish: str | None
    is_final: bool
    cached_tokens: int
    num_iterations: int


@dataclass(frozen=True)
class ErrorResponse:
    message: str


class ResponseQueue:
    """One writer in any thread; one reader, on the loop it was made on or in any thread.

    `loop` None: made where no event loop ran, so nobody can await it.
    """

    def __init__(self) -> None:
        self.loop = _running_loop()
        self._items: deque[Response | ErrorResponse] = deque()
        self._changed = threading.Condition()
        self._waiter: asyncio.Future[None] | None = None

    def push(self, item: Response | ErrorResponse) -> None:
        """Wakes readers in threads; `wake` must follow for one on the loop."""
        with self._changed:
            self._items.append(item)
            self._changed.notify()

    def wake(self) -> None:
        """On the loop only."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def get(self) -> Response | ErrorResponse:
        with self._changed:
            while not self._items:
                self._changed.wait()
            return self._items.popleft()

    async def aget(self) -> Response | ErrorResponse:
        assert self.loop is not None, (
            "The asyncio event loop was not present during initialization, so async operations "
            "are not available."
        )
        while not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._items.popleft()


class Waker:
    """Tells those on event loops that await queues; one call for a loop until it has answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop_to_queues: dict[asyncio.AbstractEventLoop, list[ResponseQueue]] = {}

    def wake(self, queues: Iterable[ResponseQueue]) -> None:
        """From any thread."""
        for queue in queues:
            if queue.loop is not None and self._note(queue, queue.loop):
                self._call(queue.loop)

    def _note(self, queue: ResponseQueue, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the loop must be called."""
        with self._lock:
            is_new = loop not in self._loop_to_queues
            self._loop_to_queues.setdefault(loop, []).append(queue)
        return is_new

    def _call(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.call_soon_threadsafe(self._on_loop, loop)
        except RuntimeError:
            if not loop.is_closed():
                raise

    def _on_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            queues = self._loop_to_queues.pop(loop)
        for queue in queues:
            queue.wake()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
