"""A client that sends chat requests and times them; the same for every server that is compared."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import aiohttp


class Sample(NamedTuple):
    """Milliseconds from sending to the first SSE event and to the end."""

    ttft_ms: float
    total_ms: float


class Result(NamedTuple):
    samples: list[Sample]
    seconds: float

    @property
    def requests_per_s(self) -> float:
        return len(self.samples) / self.seconds

    def ttft_ms(self, quantile: float) -> float:
        return _quantile([s.ttft_ms for s in self.samples], quantile)

    def total_ms(self, quantile: float) -> float:
        return _quantile([s.total_ms for s in self.samples], quantile)


async def send(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Sample:
    """One streamed request. Raises RuntimeError for any answer but 200."""
    started = time.perf_counter()
    first = None
    async with session.post(url, json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"{url}: {response.status} {await response.text()}")
        async for line in response.content:
            if first is None and line.startswith(b"data:"):
                first = time.perf_counter()
    ended = time.perf_counter()
    return Sample(((first or ended) - started) * 1e3, (ended - started) * 1e3)


async def run(url: str, bodies: Sequence[dict[str, Any]], concurrency: int) -> Result:
    """All bodies, at most `concurrency` at a time."""
    waiting = iter(bodies)
    samples: list[Sample] = []
    async with aiohttp.ClientSession() as session:

        async def work() -> None:
            for body in waiting:
                samples.append(await send(session, url, body))

        started = time.perf_counter()
        await asyncio.gather(*[work() for _ in range(concurrency)])
        return Result(samples, time.perf_counter() - started)


def _quantile(values: Sequence[float], quantile: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * quantile))]
