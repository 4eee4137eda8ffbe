"""Clients that stream short chats without a pause, and what each of them saw."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Sequence
from typing import NamedTuple

import aiohttp

NUM_CLIENTS = 8
RETRY_S = 0.05  # as a client that tries again waits
NAMES = {
    "ClientConnectorError": "refused connection",
    "ClientOSError": "closed connection",
    "ServerDisconnectedError": "closed connection",
    "ClientPayloadError": "cut stream",
    "TimeoutError": "timeout",
    "ServerTimeoutError": "timeout",
}


class Seen(NamedTuple):
    """One request as its client saw it."""

    started_at: float
    ended_at: float
    outcome: str  # ok, or what it got instead

    @property
    def took_s(self) -> float:
        return self.ended_at - self.started_at


class Clients:
    """They start with the context and end with it. Each sticks to one of `urls`. Times are those of
    time.monotonic."""

    def __init__(self, session: aiohttp.ClientSession, urls: Sequence[str]) -> None:
        self._session = session
        self._urls = urls
        self._numbers = itertools.count()
        self._is_stopped = False
        self.seen: list[Seen] = []

    async def __aenter__(self) -> Clients:
        urls = itertools.islice(itertools.cycle(self._urls), NUM_CLIENTS)
        self._running = [asyncio.create_task(self._run(url)) for url in urls]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._is_stopped = True
        await asyncio.gather(*self._running)

    def last_failed_at(self) -> float:
        """0 if no request failed."""
        return max((seen.ended_at for seen in self.seen if seen.outcome != "ok"), default=0.0)

    async def _run(self, url: str) -> None:
        while not self._is_stopped:
            started_at = time.monotonic()
            outcome = await self._ask(url, next(self._numbers))
            self.seen.append(Seen(started_at, time.monotonic(), outcome))
            if outcome != "ok":
                await asyncio.sleep(RETRY_S)

    async def _ask(self, url: str, number: int) -> str:
        body = {
            "messages": [{"role": "user", "content": f"Question {number}: {'how? ' * 30}"}],
            "max_tokens": 30,
            "stream": True,
        }
        try:
            async with self._session.post(f"{url}/v1/chat/completions", json=body) as response:
                if response.status != 200:
                    return f"HTTP {response.status}"
                return ending(await response.read())
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            name = type(error).__name__
            return NAMES.get(name, name)


def ending(data: bytes) -> str:
    """What a stream that was read to its end came to."""
    events = [line[6:] for line in data.split(b"\n\n") if line.startswith(b"data: ")]
    if not events or events[-1] != b"[DONE]":
        return "cut stream"
    parsed = [json.loads(event) for event in events[:-1]]
    return "error event" if any("error" in event for event in parsed) else "ok"
