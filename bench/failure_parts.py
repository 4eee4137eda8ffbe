"""What can be done to a fleet: one function for each failure. It returns when the blow is dealt, or
when what has to come from outside (a broker, a machine) has been given back.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import psutil

from bench.failure_measure import Blow, Part, Site, named
from bench.fleet import Fleet
from bench.local_cluster import HEAD, LocalCluster
from infra.local_broker import LocalBroker
from infra.process_session import ProcessId
from infra.replica_processes import ReplicaProcess
from infra.revive import revive_broker
from infra.run_state import StateDir
from infra.settings_sections import FailoverSettings

OUTAGE_S = 5.0  # how long what comes from outside stays away
HANG, DIE = "please hang", "please die"


def of(site: Site, deployment: str) -> list[ReplicaProcess]:
    return [replica for replica in site.replicas() if replica.deployment == deployment]


async def kill_executor(fleet: Fleet) -> Blow:
    victim = (await asyncio.to_thread(of, fleet, "Executor"))[0]
    victim.process.kill()
    return Blow(num_victims=1)


async def kill_ingress(fleet: Fleet) -> Blow:
    victim = (await asyncio.to_thread(of, fleet, "Ingress"))[0]
    victim.process.kill()
    return Blow(killed=ids_of([victim.process]))


async def kill_controller(fleet: Fleet) -> Blow:
    return await _kill_named(fleet, "ray::ServeController")


async def kill_proxy(fleet: Fleet) -> Blow:
    return await _kill_named(fleet, "haproxy")


async def kill_proxy_manager(fleet: Fleet) -> Blow:
    return await _kill_named(fleet, "ray::HAProxyManager")


async def _kill_named(fleet: Fleet, name: str) -> Blow:
    found = await asyncio.to_thread(named, fleet, name)
    assert found, f"no process {name}"
    killed = ids_of(found)
    for process in found:
        process.kill()
    return Blow(killed=killed, name=name)


def ids_of(processes: list[psutil.Process]) -> tuple[ProcessId, ...]:
    return tuple(ProcessId(process.pid, process.create_time()) for process in processes)


async def kill_broker(fleet: Fleet) -> Blow:
    broker = LocalBroker.attach(fleet.state_dir)
    assert broker is not None
    psutil.Process(broker.pid).kill()
    await asyncio.sleep(OUTAGE_S)
    await asyncio.to_thread(revive_broker, StateDir.at(fleet.state_dir), fleet.state())
    return Blow(given_back_at=time.monotonic())


async def hang_executor(fleet: Fleet) -> Blow:
    """One that accepts requests and makes no more tokens; who made it hang has left."""
    victim = (await asyncio.to_thread(of, fleet, "Executor"))[0]
    status = await _post(fleet.url, {"prompt": HANG, "max_tokens": 5}, f"{victim.replica}-0", 0.5)
    assert status == 0, f"it answered {status}"
    return Blow(num_victims=1)


async def poison(fleet: Fleet) -> Blow:
    """A prompt whose worker dies, wherever it is run."""
    status = await _post(fleet.url, {"prompt": DIE, "max_tokens": 5})
    assert status == 503, f"it answered {status}"
    return Blow(num_victims=FailoverSettings().max_attempts)


async def bad_requests(fleet: Fleet) -> Blow:
    for _ in range(200):
        assert await _post(fleet.url, {"prompt": "Hi", "max_tokens": -1}) == 400
    return Blow(given_back_at=time.monotonic())


async def _post(url: str, body: dict[str, Any], worker: str = "", timeout_s: float = 30.0) -> int:
    """The status; 0 if none came in time."""
    headers = {"x-cachelane-pin": worker} if worker else {}
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
        try:
            async with session.post(f"{url}/v1/completions", json=body) as answer:
                await answer.read()
                return answer.status
        except asyncio.TimeoutError:
            return 0


async def kill_node(cluster: LocalCluster) -> Blow:
    """One with executors, in an instant; later another one joins."""
    node = next(name for name in cluster.sessions if name != HEAD)
    num_victims = cluster.executors_on(node)
    await asyncio.to_thread(cluster.kill, node)
    await asyncio.sleep(OUTAGE_S)
    await asyncio.to_thread(cluster.start_node)
    return Blow(num_victims=num_victims, given_back_at=time.monotonic())


async def kill_head(cluster: LocalCluster) -> Blow:
    """With the cluster's state, Serve's controller and HAProxy; its machine comes back."""
    await asyncio.to_thread(cluster.kill, HEAD)
    await asyncio.sleep(OUTAGE_S)
    await asyncio.to_thread(cluster.start_head)
    return Blow(name="ray::ServeController", given_back_at=time.monotonic())


async def scale_down(cluster: LocalCluster) -> Blow:
    """After the head has come back, so that it also shows that changes are carried out."""
    num_left = len(of(cluster, "Executor")) - 1
    await asyncio.to_thread(cluster.deploy, executor={"num_replicas": num_left})
    return Blow(num_victims=1, num_executors=num_left)


ON_ONE_NODE = {
    "executor": Part("executor replica killed", kill_executor),
    "hang": Part("executor hangs (timeouts 2 s)", hang_executor),
    "poison": Part("prompt that kills its worker", poison),
    "bad requests": Part("200 bad requests", bad_requests),
    "ingress": Part("ingress replica killed (1 of 2)", kill_ingress),
    "haproxy": Part("HAProxy killed", kill_proxy),
    "proxy manager": Part("HAProxy's manager killed", kill_proxy_manager),
    "controller": Part("Serve controller killed", kill_controller),
    "broker": Part(f"Kafka away for {OUTAGE_S:.0f} s", kill_broker),
}
ON_NODES = {
    "node": Part(f"GPU node killed, another after {OUTAGE_S:.0f} s", kill_node),
    "head": Part(f"head node killed, back after {OUTAGE_S:.0f} s", kill_head, past_proxy=True),
    "scale down": Part("scale-down by one replica", scale_down),
}
