"""What clients see when a part of the fleet is killed under load, and how long until all is well.

    python -m bench.failures [--only executor,haproxy] [--json FILE]

Three scripted executors and two ingresses behind HAProxy; clients stream short chats all the time.
Each part in turn gets SIGKILL (or hangs); every request of the time after it is counted by what its
client got.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import psutil
from rich.console import Console
from rich.table import Table

from bench.fleet import Fleet, running_fleet
from bench.report import write_json
from infra.local_broker import LocalBroker
from infra.revive import revive_broker
from infra.run_state import StateDir
from tests.cluster.processes import replicas_of

NUM_CLIENTS = 8
WARM_UP_S = 4.0
OUTAGE_S = 5.0  # how long the broker stays away
SETTLED_S = 6.0  # without a failure, and every part back: healed
MAX_HEAL_S = 60.0
HANG = "please hang"
SETTINGS: dict[str, Any] = {
    "executor": {
        "kind": "scripted",
        "num_replicas": 3,
        "block_size": 32,
        "num_gpu_blocks": 2048,
        "scripted": {
            "prefill_ms": 2.0,
            "prefill_ms_per_token": 0.05,
            "decode_ms": 10.0,
            "hang_on": HANG,
        },
    },
    "events": {"load_interval_s": 0.5},
    "http": {"num_ingress": 2},
    "failover": {"max_attempts": 2},
    "tiers": {
        "rules": {
            "interactive": {
                "rank": 0,
                "first_token_timeout_s": 2.0,
                "inter_token_timeout_s": 2.0,
            },
        },
    },
}


class Seen(NamedTuple):
    """One request as its client saw it; times from the failure on, in s."""

    started_s: float
    ended_s: float
    outcome: str  # ok, or what it got instead


class Clients:
    """Send chats one after another until stopped."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._number = 0
        self.seen: list[Seen] = []
        self.is_stopped = False
        self.killed_at = float("inf")

    async def run(self, session: aiohttp.ClientSession) -> None:
        while not self.is_stopped:
            self._number += 1
            started = time.monotonic()
            outcome = await self._one(session, self._number)
            ended = time.monotonic()
            self.seen.append(Seen(started - self.killed_at, ended - self.killed_at, outcome))
            if outcome != "ok":
                await asyncio.sleep(0.05)  # as a client that tries again does

    async def _one(self, session: aiohttp.ClientSession, number: int) -> str:
        body = {
            "messages": [{"role": "user", "content": f"Question {number}: {'how? ' * 30}"}],
            "max_tokens": 30,
            "stream": True,
        }
        try:
            async with session.post(f"{self._url}/v1/chat/completions", json=body) as response:
                if response.status != 200:
                    return str(response.status)
                return _ending(await response.read())
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            return type(error).__name__


def _ending(data: bytes) -> str:
    events = [line[6:] for line in data.split(b"\n\n") if line.startswith(b"data: ")]
    if not events or events[-1] != b"[DONE]":
        return "cut"
    parsed = [json.loads(event) for event in events[:-1]]
    return "error event" if any("error" in event for event in parsed) else "ok"


class Row(NamedTuple):
    part: str
    num_requests: int
    failures: dict[str, int]
    last_failure_s: float  # after the kill; 0: none
    slowest_ms: float
    usual_ms: float
    whole_again_s: float  # until every part is back and known


Kill = Callable[[Fleet], Awaitable[None]]


async def measure(fleet: Fleet, part: str, kill: Kill) -> Row:
    """Load, kill, load until healed."""
    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=30), connector=aiohttp.TCPConnector(limit=0)
    ) as session:
        clients = Clients(fleet.url)
        clients.killed_at = time.monotonic() + WARM_UP_S
        running = [asyncio.create_task(clients.run(session)) for _ in range(NUM_CLIENTS)]
        await asyncio.sleep(WARM_UP_S)
        before = await _view(session, fleet)
        await kill(fleet)
        whole_s = await _until_whole(session, fleet, clients, before)
        clients.is_stopped = True
        await asyncio.gather(*running)
    after = [seen for seen in clients.seen if seen.ended_s > 0]
    usual = sorted(s.ended_s - s.started_s for s in clients.seen if s.ended_s <= 0)
    bad = [seen for seen in after if seen.outcome != "ok"]
    return Row(
        part=part,
        num_requests=len(after),
        failures=dict(Counter(seen.outcome for seen in bad)),
        last_failure_s=max((seen.ended_s for seen in bad), default=0.0),
        slowest_ms=max(seen.ended_s - seen.started_s for seen in after) * 1e3,
        usual_ms=usual[len(usual) // 2] * 1e3,
        whole_again_s=whole_s,
    )


async def _view(session: aiohttp.ClientSession, fleet: Fleet) -> set[str]:
    async with session.get(f"{fleet.url}/fleet") as response:
        return {row["worker"] for row in (await response.json())["workers"]}


async def _until_whole(
    session: aiohttp.ClientSession, fleet: Fleet, clients: Clients, before: set[str]
) -> float:
    """When all workers and ingresses are there, known and heard of, for a while without a failure."""
    whole_s = None
    while (now_s := time.monotonic() - clients.killed_at) < MAX_HEAL_S:
        await asyncio.sleep(0.1)
        is_whole = await _is_whole(session, fleet, len(before))
        whole_s = (whole_s if whole_s is not None else now_s) if is_whole else None
        failed_s = max((s.ended_s for s in clients.seen if s.outcome != "ok"), default=0.0)
        if whole_s is not None and now_s - max(whole_s, failed_s) > SETTLED_S:
            return max(whole_s, failed_s)
    return float("inf")


async def _is_whole(session: aiohttp.ClientSession, fleet: Fleet, num_workers: int) -> bool:
    try:
        async with session.get(f"{fleet.url}/fleet") as response:
            workers = (await response.json())["workers"]
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError, KeyError):
        return False
    replicas = await asyncio.to_thread(replicas_of, fleet.state().sessions["ray"].pid)
    num_ingress = sum(replica.deployment == "Ingress" for replica in replicas)
    return num_ingress == 2 and len(workers) == num_workers and not any(w["stale"] for w in workers)


def kill_replica(deployment: str) -> Kill:
    async def kill(fleet: Fleet) -> None:
        replicas = replicas_of(fleet.state().sessions["ray"].pid)
        next(r for r in replicas if r.deployment == deployment).process.kill()

    return kill


def kill_processes(name: str) -> Kill:
    async def kill(fleet: Fleet) -> None:
        session = fleet.state().sessions["ray"].pid
        found = [p for p in psutil.process_iter() if _is_named(p, name, session)]
        assert found, f"no process {name}"
        for process in found:
            process.kill()

    return kill


def _is_named(process: psutil.Process, name: str, session: int) -> bool:
    try:
        command = " ".join(process.cmdline())
        return os.getsid(process.pid) == session and (
            process.name().startswith(name) or command.startswith(name)
        )
    except (psutil.Error, ProcessLookupError):
        return False


async def kill_broker(fleet: Fleet) -> None:
    broker = LocalBroker.attach(fleet.state_dir)
    assert broker is not None
    psutil.Process(broker.pid).kill()
    await asyncio.sleep(OUTAGE_S)
    await asyncio.to_thread(revive_broker, StateDir.at(fleet.state_dir), fleet.state())


async def hang_executor(fleet: Fleet) -> None:
    async with aiohttp.ClientSession() as session:
        body = {"prompt": HANG, "max_tokens": 5}
        worker = sorted(await _view(session, fleet))[0]
        asyncio.get_running_loop().create_task(_post(fleet.url, body, worker))


async def _post(url: str, body: dict[str, Any], worker: str) -> None:
    headers = {"x-cachelane-pin": worker}
    timeout = aiohttp.ClientTimeout(total=0.5)  # leaves before another worker hangs too
    async with aiohttp.ClientSession(timeout=timeout) as session:
        try:
            async with session.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
                await answer.read()
        except (aiohttp.ClientError, asyncio.TimeoutError):
            return


PARTS: dict[str, Kill] = {
    "executor": kill_replica("Executor"),
    "ingress": kill_replica("Ingress"),
    "controller": kill_processes("ray::ServeController"),
    "haproxy": kill_processes("haproxy"),
    "proxy manager": kill_processes("ray::HAProxyManager"),
    "broker": kill_broker,
    "hang": hang_executor,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", help="parts, comma separated")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    parts = args.only.split(",") if args.only else list(PARTS)
    rows = []
    with running_fleet(SETTINGS) as fleet:
        for part in parts:
            rows.append(asyncio.run(measure(fleet, part, PARTS[part])))
            print(rows[-1], flush=True)
    table = Table(
        "part", "requests", "failed", "last failure s", "slowest ms", "usual ms", "whole s"
    )
    for row in rows:
        failed = ", ".join(f"{n} {kind}" for kind, n in row.failures.items()) or "none"
        table.add_row(
            row.part, str(row.num_requests), failed, f"{row.last_failure_s:.1f}",
            f"{row.slowest_ms:.0f}", f"{row.usual_ms:.0f}", f"{row.whole_again_s:.1f}",
        )  # fmt: skip
    Console().print(table)
    print(write_json("failures", {"rows": [row._asdict() for row in rows]}, args.json))


if __name__ == "__main__":
    main()
