"""Computes the hottest shared prefixes on a worker that has just come up, before traffic finds it.

Owns what this process sends for that, and when. Which prefixes are hot, `hot_prefixes` says; how a
request gets to a worker is the fleet's. Runs on the fleet's event loop, but where it says so.

A warm-up goes last at the worker's gate, and is in nobody's limits, counters or records. Every
ingress process sends its own; what another one has sent already costs the worker a lookup.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence

from controllers.autoscaling_settings import AutoscalingSettings
from controllers.errors import CachelaneError
from controllers.hot_prefixes import HotPrefixes, Prefix, warm_up_id
from serve_app.executors.base import GenerateRequest, SamplingParams
from serve_app.fleet import Ask

logger = logging.getLogger(__name__)

LAST_RANK = 99
REQUEST_TYPE = "system"
# A worker that takes longer for one prefix has better things to do.
MAX_WARM_UP_S = 60.0

# Blocks of a prefix that a worker holds already; None: it is no member any more.
Overlap = Callable[[str, Sequence[int]], "int | None"]


class WarmStart:
    """`run` sends one request to the worker it is pinned to and waits for its end."""

    def __init__(
        self,
        block_size: int,
        run: Callable[[Ask], Awaitable[None]],
        overlap: Overlap,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_sent = 0
        self._prefixes = HotPrefixes(block_size)
        self._run = run
        self._overlap = overlap
        self._loop = loop
        self._clock = clock
        self._settings = AutoscalingSettings()
        self._tasks: set[asyncio.Task[None]] = set()

    def configure(self, settings: AutoscalingSettings) -> None:
        self._settings = settings

    def observe(self, ask: Ask) -> None:
        """A request that this process has let in."""
        if self._settings.warm_start:
            request = ask.request
            self._prefixes.observe(
                ask.hashes,
                request.token_ids,
                salt=request.salt,
                tenant=request.tenant,
                adapter=request.adapter,
                retention=request.retention,
                now=self._clock(),
            )

    def on_new_workers(self, workers: Iterable[str]) -> None:
        """Any thread."""
        if self._settings.warm_start:
            # A context of its own: a handle call must not look like part of somebody's request.
            self._loop.call_soon_threadsafe(
                self._begin, list(workers), context=contextvars.Context()
            )

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _begin(self, workers: list[str]) -> None:
        for worker in workers:
            task = self._loop.create_task(self._warm(worker))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _warm(self, worker: str) -> None:
        """One prefix after the other: together they would wait for each other, and all else."""
        settings = self._settings
        prefixes = self._prefixes.hottest(
            settings.warm_start_min_uses,
            settings.warm_start_max_prefixes,
            settings.warm_start_max_tokens,
            self._clock(),
        )
        for prefix in prefixes:
            num_known = self._overlap(worker, prefix.hashes)
            if num_known is None:
                return
            if num_known < len(prefix.hashes):
                await self._send(worker, prefix)

    async def _send(self, worker: str, prefix: Prefix) -> None:
        self.num_sent += 1
        try:
            await asyncio.wait_for(self._run(_ask(worker, prefix)), MAX_WARM_UP_S)
        except (CachelaneError, asyncio.TimeoutError) as error:
            logger.info("warm-up of %s with %d tokens: %r", worker, prefix.num_tokens, error)


def _ask(worker: str, prefix: Prefix) -> Ask:
    """A request for one token that nobody reads."""
    return Ask(
        request=GenerateRequest(
            request_id=warm_up_id(uuid.uuid4().hex),
            token_ids=prefix.token_ids,
            sampling=SamplingParams(max_tokens=1, temperature=0.0),
            retention=prefix.retention,
            salt=prefix.salt,
            tier=REQUEST_TYPE,
            tenant=prefix.tenant,
            adapter=prefix.adapter,
            service_rank=LAST_RANK,
        ),
        hashes=list(prefix.hashes),
        num_tokens=prefix.num_tokens,
        request_type=REQUEST_TYPE,
        tier=REQUEST_TYPE,
        tenant=prefix.tenant,
        pinned_worker=worker,
    )
