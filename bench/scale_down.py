"""Requests while replicas leave: how many of them fail, and how many were on a replica that left.

    python -m bench.scale_down [--requests 1000] [--rounds 4] [--clients 16] [--json OUT.json]

Starts a fleet of three scripted replicas with pretended timing and sends streams without a pause.
Meanwhile the bounds of autoscaling go from three replicas to one and back, once for each round. A
request fails if it is not answered 200, carries an error event, does not end with [DONE] or has not
as many tokens as it asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import time
from collections import Counter
from typing import Any

import aiohttp

from bench.arguments import new_file, positive_int
from bench.fleet import Fleet, running_fleet
from bench.report import Row, print_rows, write_json

MAX_TOKENS = (5, 400)  # streams of 25 ms to 2 s
SETTLE_S = 120.0
SETTINGS: dict[str, Any] = {
    "executor": {
        "kind": "scripted",
        "block_size": 32,
        "num_gpu_blocks": 4096,
        "max_batch_size": 4,  # the others wait at the gate, and must not be lost there either
        "scripted": {"prefill_ms": 2.0, "prefill_ms_per_token": 0.02, "decode_ms": 5.0},
    },
    "autoscaling": {"enabled": True, "min_replicas": 3, "max_replicas": 3, "interval_s": 0.5},
    "http": {"num_ingress": 2},
}


class Results:
    def __init__(self) -> None:
        self.num_ok = 0
        self.failures: list[str] = []
        self.by_worker: Counter[str] = Counter()


async def ask(session: aiohttp.ClientSession, fleet: Fleet, number: int, into: Results) -> None:
    rng = random.Random(number)
    wanted = rng.randint(*MAX_TOKENS)
    body = {"prompt": f"{number} asks for {wanted}", "max_tokens": wanted, "stream": True}
    try:
        async with session.post(f"{fleet.url}/v1/completions", json=body) as response:
            into.by_worker[response.headers.get("x-cachelane-worker", "none")] += 1
            lines = [line.decode().strip() async for line in response.content]
            problem = fault(response.status, [line[6:] for line in lines if line], wanted)
    except aiohttp.ClientError as error:
        problem = repr(error)
    if problem is None:
        into.num_ok += 1
    else:
        into.failures.append(f"{number}: {problem}")


def fault(status: int, events: list[str], wanted: int) -> str | None:
    """What is wrong with an answer, if anything. The scripted model's tokens are one byte each."""
    if status != 200:
        return f"{status} {events}"
    if not events or events[-1] != "[DONE]":
        return f"ended with {events[-1:]}"
    parts = [json.loads(event) for event in events[:-1]]
    if any("error" in part for part in parts):
        return f"error event {parts[-1]}"
    num_bytes = sum(len(c["text"].encode()) for part in parts for c in part["choices"])
    return None if num_bytes == wanted else f"{num_bytes} of {wanted} tokens"


async def load(
    fleet: Fleet, num_requests: int, num_clients: int, is_over: asyncio.Event
) -> Results:
    """At least so many requests, and until it is over."""
    numbers = itertools.count()
    results = Results()
    connector = aiohttp.TCPConnector(limit=num_clients)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def client() -> None:
            while not is_over.is_set() or len(results.failures) + results.num_ok < num_requests:
                await ask(session, fleet, next(numbers), results)

        await asyncio.gather(*[client() for _ in range(num_clients)])
    return results


async def workers(fleet: Fleet) -> set[str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{fleet.url}/fleet") as response,
    ):
        return {row["worker"] for row in (await response.json())["workers"]}


async def scale(fleet: Fleet, num_replicas: int) -> set[str]:
    """Both bounds to this number; the workers once there are so many."""
    bounds = {"min_replicas": num_replicas, "max_replicas": num_replicas}
    await asyncio.to_thread(fleet.redeploy, "autoscaling", **bounds)
    deadline_s = time.monotonic() + SETTLE_S
    while len(found := await workers(fleet)) != num_replicas:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{len(found)} workers, not {num_replicas}")
        await asyncio.sleep(0.2)
    return found


async def measure(fleet: Fleet, args: argparse.Namespace) -> dict[str, Any]:
    is_over = asyncio.Event()
    running = asyncio.create_task(load(fleet, args.requests, args.clients, is_over))
    num_left = 0
    known = await scale(fleet, 3)
    for _ in range(args.rounds):
        num_left += len(known - await scale(fleet, 1))
        known = await scale(fleet, 3)
    is_over.set()
    results = await running
    return {
        "requests": results.num_ok + len(results.failures),
        "failed": len(results.failures),
        "replicas_left": num_left,
        "on_replicas_that_left": sum(
            num for worker, num in results.by_worker.items() if worker not in known
        ),
        "failures": results.failures[:20],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=positive_int, default=1000)
    parser.add_argument("--rounds", type=positive_int, default=4)
    parser.add_argument("--clients", type=positive_int, default=16)
    parser.add_argument("--json", type=new_file)
    args = parser.parse_args()
    with running_fleet(SETTINGS) as fleet:
        found = asyncio.run(measure(fleet, args))
    print_rows(
        "requests while replicas leave",
        [
            Row("requests", "", found["requests"], target=args.requests),
            Row("failed", "", found["failed"], target=0, is_less_better=True),
            Row("replicas that left", "", found["replicas_left"]),
            Row("requests they served", "", found["on_replicas_that_left"]),
        ],
    )
    for failure in found["failures"]:
        print(failure)
    print(write_json("scale_down", found, args.json))


if __name__ == "__main__":
    main()
