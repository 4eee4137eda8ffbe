"""A fleet of one executor in this process: for tests, documentation and single-process use.

Keeps the hashes of the blocks that the executor says it holds, so that predictions are real. Knows
nothing of Ray, Kafka or HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec

from controllers.errors import ExecutorDead
from controllers.events import Cleared, Event, Removed, Stored, ints_of
from serve_app.executors.base import Executor, ExecutorInfo, TokenChunk
from serve_app.fleet import Ask, Route

WORKER = "local/0"


class LocalFleet:
    """The protocol `Fleet` over one executor, which stays the caller's to close."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._resident: set[int] = set()
        self._num_running = 0
        self._num_requests = 0

    def info(self) -> ExecutorInfo:
        return self._executor.info

    async def generate(self, ask: Ask, route: Route) -> AsyncIterator[TokenChunk]:
        self._place(ask, route)
        self._num_requests += 1
        self._num_running += 1
        try:
            async with aclosing(self._executor.generate(ask.request)) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    yield chunk
        finally:
            self._num_running -= 1

    def explain(self, ask: Ask) -> dict[str, Any]:
        route = Route()
        self._place(ask, route)
        return {
            "worker": route.worker,
            "reason": route.reason,
            "predicted_cached_tokens": route.predicted_cached_tokens,
            "num_prompt_tokens": ask.num_tokens,
            "num_blocks": len(ask.hashes),
        }

    def describe(self) -> dict[str, Any]:
        info = self._executor.info
        worker = {
            "worker": WORKER,
            "executor": info.name,
            "model": info.model,
            "load": msgspec.to_builtins(self._executor.load()),
        }
        return {
            "workers": [worker],
            "num_requests": self._num_requests,
            "num_running": self._num_running,
        }

    def readiness(self) -> str | None:
        try:
            self._executor.check_health()
        except ExecutorDead as error:
            return str(error)
        return None

    def _place(self, ask: Ask, route: Route) -> None:
        for event in self._executor.drain_events(0):
            self._apply(event)
        cached = self._num_leading(ask.hashes) * self._executor.info.block_size
        route.worker = WORKER
        route.reason = "overlap" if cached else "cold"
        route.predicted_cached_tokens = route.best_cached_tokens = cached
        route.num_attempts = route.num_candidates = 1

    def _num_leading(self, hashes: list[int]) -> int:
        """How many blocks from the first on are resident."""
        for count, block in enumerate(hashes):
            if block not in self._resident:
                return count
        return len(hashes)

    def _apply(self, event: Event) -> None:
        if isinstance(event, Stored):
            self._resident.update(ints_of(event.hashes))
        elif isinstance(event, Removed):
            self._resident.difference_update(ints_of(event.hashes))
        elif isinstance(event, Cleared):
            self._resident.clear()
