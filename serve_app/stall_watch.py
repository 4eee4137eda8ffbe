"""Notices that an executor took requests and makes no tokens.

Owns when each running request last got something, and what follows when that was too long ago: the
request is aborted in the executor and its caller hears ExecutorDead, so that it is run elsewhere.
Until somebody gets a token again, one request at a time may try. One event loop. Does not know
where requests wait before the executor has them (`on_stall` tells), nor who replaces the executor.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from controllers.errors import ExecutorDead, RequestAborted
from serve_app.executors.base import Executor, GenerateRequest, TokenChunk

CHECK_INTERVAL_S = 0.25


@dataclass(frozen=True)
class Patience:
    """How long an executor may take for a request's first token, and for each one after it, s."""

    first_token_s: float
    next_token_s: float


@dataclass
class _Run:
    patience: Patience
    last_at: float
    has_token: bool = False
    has_stalled: bool = False

    def is_late(self, now: float) -> bool:
        limit_s = self.patience.next_token_s if self.has_token else self.patience.first_token_s
        return now - self.last_at > limit_s


class StallWatch:
    """Runs requests on an executor. `clock` is monotonic, in seconds.

    `on_stall` is called on the event loop, whenever requests were given up.
    """

    def __init__(
        self,
        executor: Executor,
        clock: Callable[[], float] = time.monotonic,
        on_stall: Callable[[], None] = lambda: None,
    ) -> None:
        self._executor = executor
        self._clock = clock
        self._on_stall = on_stall
        self._id_to_run: dict[str, _Run] = {}
        self._is_stalled = False
        self._checks: asyncio.Task[None] | None = None

    @property
    def is_stalled(self) -> bool:
        """A request's time ran out, and no request has got anything since. Any thread."""
        return self._is_stalled

    def check_open(self) -> None:
        """Raises ExecutorDead while the executor is stalled and somebody tries it already."""
        if self._is_stalled and self._id_to_run:
            raise ExecutorDead("the executor takes requests and makes no tokens")

    async def generate(
        self, request: GenerateRequest, patience: Patience
    ) -> AsyncIterator[TokenChunk]:
        """The executor's chunks. Raises ExecutorDead when they stop coming, and what it raises."""
        self.check_open()
        run = self._id_to_run[request.request_id] = _Run(patience, self._clock())
        self._start_checks()
        try:
            async with aclosing(self._executor.generate(request)) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    run.last_at, run.has_token = self._clock(), True
                    self._is_stalled = False
                    yield chunk
        except RequestAborted as error:
            if run.has_stalled:
                raise ExecutorDead(
                    f"the executor made no token of {request.request_id!r} in time"
                ) from error
            raise
        finally:
            del self._id_to_run[request.request_id]

    def check(self) -> None:
        """Give up what is late."""
        now, runs = self._clock(), self._id_to_run
        late = [id_ for id_, run in runs.items() if not run.has_stalled and run.is_late(now)]
        for request_id in late:
            runs[request_id].has_stalled = self._is_stalled = True
            self._executor.abort(request_id)
        if late:
            self._on_stall()

    def _start_checks(self) -> None:
        if self._checks is None or self._checks.done():
            self._checks = asyncio.create_task(self._check_while_running())

    async def _check_while_running(self) -> None:
        while self._id_to_run:
            self.check()
            await asyncio.sleep(CHECK_INTERVAL_S)
