"""What arrives for one HTTP request while it runs: chunks, errors, the news that the client left.

Owns the tasks that read the fleet. Everything that is ready is handed over at once, so that a slow
client costs fewer, larger writes. Knows no text and no wire format.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from types import TracebackType

from controllers.errors import ExecutorError
from serve_app.asgi import ClientGone, Receive
from serve_app.executors.base import TokenChunk
from serve_app.fleet import Ask, Fleet, Route

# How long the end of a complete stream may take to arrive.
MAX_END_S = 1.0


class Feed:
    """An async context: entering starts every prompt, leaving aborts what still runs.

    `routes[i]` belongs to prompt i.
    """

    def __init__(self, fleet: Fleet, asks: Sequence[Ask], receive: Receive) -> None:
        self.routes = [Route() for _ in asks]
        self._fleet = fleet
        self._asks = asks
        self._receive = receive
        self._ready: list[tuple[int, TokenChunk]] = []
        self._num_unfinished = [ask.request.sampling.n for ask in asks]
        self._failure: Exception | None = None
        self._wake = asyncio.Event()
        self._pumps: list[asyncio.Task[None]] = []
        self._watchers: list[asyncio.Task[None]] = []
        self._cancelled: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Feed:
        self._watchers = [asyncio.create_task(self._watch())]
        self._pumps = [asyncio.create_task(self._pump(i)) for i in range(len(self._asks))]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Aborts what still runs.

        A prompt whose last chunk came may end by itself first: cancelled now, it would be in the
        fleet's books as aborted.
        """
        pumps = list(zip(self._pumps, self._num_unfinished, strict=True))
        complete = [pump for pump, left in pumps if not left]
        aborted = [pump for pump, left in pumps if left]
        await self._cancel([*aborted, *self._watchers])
        await _wait(complete, MAX_END_S)
        await self._cancel(complete)

    async def next(self) -> list[tuple[int, TokenChunk]]:
        """(prompt index, chunk) of all that came since the last call; waits for the first one.

        Call it only while some sequence has no finish reason. Raises the fleet's error, or
        ClientGone.
        """
        while not self._ready or isinstance(self._failure, ClientGone):
            if self._failure is not None:
                raise self._failure
            self._wake.clear()
            await self._wake.wait()
        ready, self._ready = self._ready, []
        return ready

    def stop(self, prompt: int) -> None:
        """Nobody needs more of this prompt: abort what its executor has not ended by itself."""
        if self._num_unfinished[prompt] and not self._pumps[prompt].done():
            self.routes[prompt].is_answered = True
            self._cancel_once(self._pumps[prompt])

    async def _cancel(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Returns when they have ended."""
        for task in tasks:
            self._cancel_once(task)
        await _wait(tasks, None)

    def _cancel_once(self, task: asyncio.Task[None]) -> None:
        """A second cancellation would interrupt the clean-up that the first one began."""
        if task not in self._cancelled:
            self._cancelled.add(task)
            task.cancel()

    async def _pump(self, prompt: int) -> None:
        try:
            chunks = self._fleet.generate(self._asks[prompt], self.routes[prompt])
            async with aclosing(chunks):  # type: ignore[type-var]
                async for chunk in chunks:
                    self._num_unfinished[prompt] -= chunk.finish_reason is not None
                    self._ready.append((prompt, chunk))
                    self._wake.set()
            if self._num_unfinished[prompt]:
                self._fail(ExecutorError("the worker's answer ended before it was finished"))
        except Exception as error:
            self._fail(error)

    async def _watch(self) -> None:
        try:
            while (await self._receive())["type"] != "http.disconnect":
                pass
        except Exception as error:
            self._fail(error)
        else:
            self._fail(ClientGone())

    def _fail(self, error: Exception) -> None:
        """A client that left is the last word; of the other errors the first counts."""
        if self._failure is None or isinstance(error, ClientGone):
            self._failure = error
        self._wake.set()


async def _wait(tasks: Sequence[asyncio.Task[None]], timeout_s: float | None) -> None:
    running = [task for task in tasks if not task.done()]
    if running:
        await asyncio.wait(running, timeout=timeout_s)
