"""Lets Serve know that somebody is there, when no replica has ever been seen to place a request on.

Serve starts the first replica of a fleet scaled to zero when a request waits in a router. An
ingress that was started meanwhile has not seen any replica: it cannot tell what would fit the
model, so its clients' requests never get to the router. This sends one of our own.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import uuid
from collections.abc import Awaitable, Callable

from controllers.errors import CachelaneError
from controllers.hot_prefixes import warm_up_id
from serve_app.executors.base import GenerateRequest, SamplingParams
from serve_app.fleet import Ask

SOME_TOKEN = (0).to_bytes(4, "little")


class Knock:
    """`run` waits in the router like any request, until there is a replica or its patience ends."""

    def __init__(
        self, run: Callable[[Ask], Awaitable[None]], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.is_enabled = False
        self._run = run
        self._loop = loop
        self._task: asyncio.Task[None] | None = None

    def knock(self) -> None:
        """Once at a time. On the loop; waits for nothing."""
        if self.is_enabled and (self._task is None or self._task.done()):
            # A context of its own: it must not look like part of somebody's request.
            contextvars.Context().run(self._begin)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._wait())

    async def _wait(self) -> None:
        with contextlib.suppress(CachelaneError):
            await self._run(_ask())


def _ask() -> Ask:
    request = GenerateRequest(
        request_id=warm_up_id(uuid.uuid4().hex),
        token_ids=SOME_TOKEN,
        sampling=SamplingParams(max_tokens=1, temperature=0.0),
    )
    return Ask(
        request=request,
        hashes=[],
        num_tokens=1,
        request_type="system",
        tier="system",
        tenant=request.tenant,
    )
