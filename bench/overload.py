"""Three times more work than a fleet can do: who is served, who is refused, and how soon.

    python -m bench.overload [--seconds 30] [--json OUT.json]

Two scripted replicas behind two ingresses, so that only scheduling is measured. First what the
fleet can do at most; then interactive requests alone, at 0.3 of that; then the same again under a
flood of batch requests, together three times the most. The flood is of two tenants with weights
3 and 1 that send equally much. A fourth tenant sends three times its own rate limit.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from bench.arguments import new_file, positive_number
from bench.fleet import running_fleet
from bench.report import Row, print_rows, write_json

NUM_REPLICAS = 2
BATCH_SIZE = 8
SETTINGS: dict[str, Any] = {
    "executor": {
        "kind": "scripted",
        "num_replicas": NUM_REPLICAS,
        "max_batch_size": BATCH_SIZE,
        "max_waiting_requests": 20,
        # Slow, so that the figures are the scheduler's and not this machine's.
        "scripted": {"prefill_ms": 60.0, "prefill_ms_per_token": 0.2, "decode_ms": 30.0},
    },
    "events": {"load_interval_s": 0.5},
    "http": {"num_ingress": 2},
    "tenants": {
        "default": {},
        "heavy": {"api_keys": ["heavy"], "limits": {"weight": 3}},
        "light": {"api_keys": ["light"], "limits": {"weight": 1}},
        "limited": {"api_keys": ["limited"], "limits": {"max_requests_per_s": 1}},
    },
    "admission": {"burst_s": 1.0},
}
PROMPT_BYTES = 300  # the scripted executor's tokens are bytes
OUTPUT_TOKENS = {"interactive": 8, "batch": 32}
LOAD = 3.0  # of what the fleet can do
INTERACTIVE_SHARE = 0.3
LIMITED_PER_S = 3.0
SEED = 11


@dataclass
class Tally:
    """What came of one class or tenant; times in ms, rates in requests per s."""

    sent: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    ttft_ms: list[float] = field(default_factory=list)
    refused_after_ms: list[float] = field(default_factory=list)
    ended_at: list[float] = field(default_factory=list)  # of those that were served
    retry_after_s: list[int] = field(default_factory=list)

    def figures(self, started_at: float, seconds: float) -> dict[str, Any]:
        """`seconds` are those in which requests came; what was left then is not counted."""
        num_in_time = sum(at < started_at + seconds for at in self.ended_at)
        return {
            "sent": self.sent,
            "statuses": {str(status): num for status, num in sorted(self.statuses.items())},
            "served_per_s": round(num_in_time / seconds, 2),
            "ttft_ms": {f"p{q}": quantile(self.ttft_ms, q) for q in (50, 90, 99)},
            "refused_after_ms": {f"p{q}": quantile(self.refused_after_ms, q) for q in (50, 99)},
            "retry_after_s": {f"p{q}": quantile(self.retry_after_s, q) for q in (50, 99)},
        }


def quantile(values: Sequence[float], percent: int) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 1)


@dataclass(frozen=True)
class Stream:
    """Requests of one kind that arrive at random, `per_s` on average."""

    name: str
    request_type: str
    per_s: float
    api_key: str = "any"


class Client:
    """Sends streamed completions. Every prompt is new, so nothing is ever cached."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/v1/completions"
        self._rng = random.Random(SEED)
        self._num_sent = 0

    async def open_loop(self, streams: Sequence[Stream], seconds: float) -> dict[str, Tally]:
        """Arrivals do not wait for answers; returns when the last answer is there."""
        tallies = {stream.name: Tally() for stream in streams}
        async with self._session() as session:
            await asyncio.gather(
                *(self._arrive(session, s, seconds, tallies[s.name]) for s in streams)
            )
        return tallies

    async def closed_loop(self, concurrency: int, seconds: float) -> float:
        """Requests per s with so many always there, of the mixture of the flood."""
        tally, end = Tally(), time.perf_counter() + seconds
        async with self._session() as session:

            async def work() -> None:
                while time.perf_counter() < end:
                    kind = "interactive" if self._rng.random() < INTERACTIVE_SHARE else "batch"
                    await self._send(session, Stream("", kind, 0), tally)

            await asyncio.gather(*(work() for _ in range(concurrency)))
        return sum(at < end for at in tally.ended_at) / seconds

    def _session(self) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=120)
        return aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))

    async def _arrive(
        self, session: aiohttp.ClientSession, stream: Stream, seconds: float, tally: Tally
    ) -> None:
        rng, sends = random.Random(f"{SEED}{stream.name}"), []
        at = started = time.perf_counter()
        while True:
            at += rng.expovariate(stream.per_s)
            if at > started + seconds:
                break
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            sends.append(asyncio.create_task(self._send(session, stream, tally)))
        await asyncio.gather(*sends)

    async def _send(self, session: aiohttp.ClientSession, stream: Stream, tally: Tally) -> None:
        self._num_sent += 1
        tally.sent += 1
        body = {
            "prompt": f"{self._num_sent:08d} ".ljust(PROMPT_BYTES, "x"),
            "max_tokens": OUTPUT_TOKENS[stream.request_type],
            "request_type": stream.request_type,
            "stream": True,
        }
        headers = {"authorization": f"Bearer {stream.api_key}"}
        began = time.perf_counter()
        async with session.post(self._url, json=body, headers=headers) as response:
            first = None
            async for line in response.content:
                if first is None and line.startswith((b"data:", b"{")):
                    first = (time.perf_counter() - began) * 1e3
            tally.statuses[response.status] += 1
            if response.status == 200:
                tally.ttft_ms.append(first or 0.0)
                tally.ended_at.append(time.perf_counter())
            else:
                tally.refused_after_ms.append(first or 0.0)
                tally.retry_after_s.append(int(response.headers.get("retry-after", 0)))


async def ingress_counters(url: str, num_ingress: int) -> dict[str, Any]:
    """What each ingress says of itself; the balancer is asked until all have answered."""
    found: dict[str, Any] = {}
    async with aiohttp.ClientSession() as session:
        for _ in range(100):
            async with session.get(f"{url}/fleet") as response:
                view = await response.json()
            routing = view["routing"]
            found[view["ingress"]["id"]] = {
                name: routing[name]
                for name in ("outcomes", "refused_by_tier", "in_flight", "waiting", "reserved")
            }
            if len(found) == num_ingress:
                break
    return found


async def figures_of(client: Client, streams: Sequence[Stream], seconds: float) -> dict[str, Any]:
    started_at = time.perf_counter()
    tallies = await client.open_loop(streams, seconds)
    return {name: tally.figures(started_at, seconds) for name, tally in tallies.items()}


async def measure(url: str, seconds: float) -> dict[str, Any]:
    client = Client(url)
    places = NUM_REPLICAS * BATCH_SIZE
    await client.closed_loop(places, 2.0)  # the cost model learns
    capacity = await client.closed_loop(2 * places, min(10.0, seconds / 2))
    interactive = Stream("interactive", "interactive", INTERACTIVE_SHARE * capacity)
    flood = (LOAD - INTERACTIVE_SHARE) * capacity / 2
    streams = [
        interactive,
        Stream("batch heavy", "batch", flood, "heavy"),
        Stream("batch light", "batch", flood, "light"),
        Stream("limited", "interactive", LIMITED_PER_S, "limited"),
    ]
    return {
        "capacity_per_s": round(capacity, 2),
        "alone": await figures_of(client, [interactive], seconds),
        "overload": await figures_of(client, streams, seconds),
        "ingresses": await ingress_counters(url, SETTINGS["http"]["num_ingress"]),
    }


def rows_of(figures: dict[str, Any]) -> list[Row]:
    alone, overload = figures["alone"]["interactive"], figures["overload"]
    chat, heavy, light = (overload[n] for n in ("interactive", "batch heavy", "batch light"))
    served = [ingress["outcomes"].get("ok", 0) for ingress in figures["ingresses"].values()]
    batch_sent = heavy["sent"] + light["sent"]
    batch_refused = batch_sent - sum(t["statuses"].get("200", 0) for t in (heavy, light))
    rates = sum(tally["served_per_s"] for tally in overload.values())
    ratio = chat["ttft_ms"]["p99"] / alone["ttft_ms"]["p99"]
    return [
        Row("interactive p50 TTFT alone", "ms", alone["ttft_ms"]["p50"]),
        Row("interactive p50 TTFT, 3x overload", "ms", chat["ttft_ms"]["p50"]),
        Row("interactive p99 TTFT alone", "ms", alone["ttft_ms"]["p99"]),
        Row("interactive p99 TTFT, 3x overload", "ms", chat["ttft_ms"]["p99"]),
        Row("ratio of the p99", "x", ratio, target=2.0, is_less_better=True),
        Row(
            "interactive served",
            "share",
            chat["statuses"].get("200", 0) / chat["sent"],
            target=0.999,
        ),
        Row("batch refused", "share", batch_refused / batch_sent),
        Row("batch refused after, p99", "ms", heavy["refused_after_ms"]["p99"]),
        Row("most the fleet can do", "1/s", figures["capacity_per_s"]),
        Row("served under overload", "1/s", rates, target=0.85 * figures["capacity_per_s"]),
        Row("served of weight 3 / of weight 1", "x", heavy["served_per_s"] / light["served_per_s"]),
        Row("tenant limited to 1/s", "1/s", overload["limited"]["served_per_s"]),
        Row("served by ingresses, least / most", "x", min(served) / max(served)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=positive_number, default=30.0)
    parser.add_argument("--json", type=new_file)
    args = parser.parse_args()
    with running_fleet(SETTINGS) as fleet:
        figures = asyncio.run(measure(fleet.url, args.seconds))
    path = write_json("overload", figures, args.json)
    print_rows("3x overload, two ingresses", rows_of(figures))
    print(path)


if __name__ == "__main__":
    main()
