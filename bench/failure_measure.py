"""One failure under load: what clients got from it on, and when everything was whole again."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple, Protocol

import aiohttp
import psutil

from bench.failure_clients import Clients
from infra.process_session import ProcessId
from infra.replica_processes import ReplicaProcess

WARM_UP_S = 4.0
SETTLED_S = 6.0  # whole and without a failure for so long: healed
MAX_HEAL_S = 90.0
LOOK_S = 0.2
CLIENT_TIMEOUT_S = 30.0


class Site(Protocol):
    """A running fleet on this machine."""

    url: str  # the front door

    def replicas(self) -> list[ReplicaProcess]: ...

    def processes(self) -> list[psutil.Process]: ...


@dataclass(frozen=True)
class Blow:
    """What was done. Whole again is what has as many executors as before, or `num_executors`, after
    `num_victims` of them are gone; and of `killed` no process left, but one of the same name."""

    num_victims: int = 0
    num_executors: int | None = None
    killed: tuple[ProcessId, ...] = ()
    name: str = ""
    given_back_at: float | None = None  # when what is not ours to heal was there again


@dataclass(frozen=True)
class Part:
    """`title`: of the failure, as the documentation has it. `past_proxy`: its clients talk to the
    ingresses themselves."""

    title: str
    strike: Callable[[Any], Awaitable[Blow]]
    past_proxy: bool = False


class Row(NamedTuple):
    """Times are from the blow on; `whole_s` from when what had to be given back was."""

    part: str
    title: str
    num_requests: int
    failures: dict[str, int]
    last_failure_s: float  # 0: none
    slowest_ms: float
    usual_ms: float
    num_replaced: int  # executors
    whole_s: float


async def measure(site: Site, name: str, part: Part) -> Row:
    """Load, the blow, load until healed."""
    before = await asyncio.to_thread(site.replicas)
    timeout = aiohttp.ClientTimeout(total=CLIENT_TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        urls = urls_of(before, site.url) if part.past_proxy else [site.url]
        async with Clients(session, urls) as clients:
            await asyncio.sleep(WARM_UP_S)
            failed_at = time.monotonic()
            blow = await part.strike(site)
            whole_at = await _until_whole(session, site, clients, before, blow)
    after = await asyncio.to_thread(site.replicas)
    return _row(name, part, clients, failed_at, blow, whole_at, _num_gone(before, after))


def _row(
    name: str,
    part: Part,
    clients: Clients,
    failed_at: float,
    blow: Blow,
    whole_at: float,
    num_replaced: int,
) -> Row:
    seen = [request for request in clients.seen if request.ended_at > failed_at]
    bad = Counter(request.outcome for request in seen if request.outcome != "ok")
    usual = [request.took_s for request in clients.seen if request.ended_at <= failed_at]
    return Row(
        part=name,
        title=part.title,
        num_requests=len(seen),
        failures=dict(bad),
        last_failure_s=max(0.0, clients.last_failed_at() - failed_at),
        slowest_ms=max(request.took_s for request in seen) * 1e3,
        usual_ms=median(usual) * 1e3,
        num_replaced=num_replaced,
        whole_s=max(0.0, whole_at - (blow.given_back_at or failed_at)),
    )


def urls_of(replicas: Sequence[ReplicaProcess], front_door: str) -> list[str]:
    """Of the ingresses, past the proxy."""
    host = front_door.rpartition(":")[0]
    return [f"{host}:{replica.port}" for replica in replicas if replica.deployment == "Ingress"]


async def _until_whole(
    session: aiohttp.ClientSession,
    site: Site,
    clients: Clients,
    before: Sequence[ReplicaProcess],
    blow: Blow,
) -> float:
    """The moment since which all is well; infinite if that does not come."""
    deadline_at = time.monotonic() + MAX_HEAL_S
    whole_at: float | None = None
    while (now := time.monotonic()) < deadline_at:
        is_whole = await _is_whole(session, site, before, blow)
        whole_at = (whole_at if whole_at is not None else now) if is_whole else None
        healed_at = max(whole_at or now, clients.last_failed_at())
        if now - healed_at > SETTLED_S:
            return healed_at
        await asyncio.sleep(LOOK_S)
    return float("inf")


async def _is_whole(
    session: aiohttp.ClientSession, site: Site, before: Sequence[ReplicaProcess], blow: Blow
) -> bool:
    replicas = await asyncio.to_thread(site.replicas)
    executors = {f"{r.replica}-0" for r in replicas if r.deployment == "Executor"}
    num_executors = blow.num_executors or _num(before, "Executor")
    if len(executors) != num_executors or _num(replicas, "Ingress") != _num(before, "Ingress"):
        return False
    if _num_gone(before, replicas) < blow.num_victims or not await _is_back(site, blow):
        return False
    doors = [site.url, *urls_of(replicas, site.url)]
    return all([await _knows(session, door, executors) for door in doors])


async def _is_back(site: Site, blow: Blow) -> bool:
    if any(process.is_alive() for process in blow.killed):
        return False
    return not blow.name or bool(await asyncio.to_thread(named, site, blow.name))


def named(site: Site, name: str) -> list[psutil.Process]:
    """Processes of the site whose name or command starts so."""
    return [process for process in site.processes() if _is_named(process, name)]


def _is_named(process: psutil.Process, name: str) -> bool:
    try:
        return process.name().startswith(name) or " ".join(process.cmdline()).startswith(name)
    except psutil.Error:
        return False


async def _knows(session: aiohttp.ClientSession, url: str, executors: set[str]) -> bool:
    """Whether an ingress answers there that knows of all executors what they hold."""
    try:
        async with session.get(f"{url}/fleet") as response:
            workers = (await response.json())["workers"]
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError, KeyError):
        return False
    return (
        {row["worker"] for row in workers if not row["stale"]}
        == executors
        == {row["worker"] for row in workers}
    )


def _num(replicas: Sequence[ReplicaProcess], deployment: str) -> int:
    return sum(replica.deployment == deployment for replica in replicas)


def _num_gone(before: Sequence[ReplicaProcess], after: Sequence[ReplicaProcess]) -> int:
    """Executors that were there and are not any more."""
    left = {replica.replica for replica in after}
    return sum(r.deployment == "Executor" and r.replica not in left for r in before)
