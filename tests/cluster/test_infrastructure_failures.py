"""What is not ours dies: HAProxy, Serve's controller, a whole node. Requests go on or come back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest

from bench.local_cluster import HEAD, LocalCluster, running_cluster
from infra.process_session import session_members
from tests.cluster.conftest import OneFleet
from tests.cluster.eventually import eventually
from tests.cluster.fleet import Fleet

# Nodes outlive the objects that started them, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")

COMPLETIONS = "/v1/completions"
BODY = {"prompt": "whatever happens " * 4, "max_tokens": 2}
BACK_TIMEOUT_S = 30.0


def processes_of(fleet: Fleet, name: str) -> dict[int, psutil.Process]:
    members = session_members(fleet.run.sessions["ray"])
    return {process.pid: process for process in members if is_named(process, name)}


def is_named(process: psutil.Process, name: str) -> bool:
    try:  # an actor's title goes on with the method that it runs
        return process.name() == name or " ".join(process.cmdline()).startswith(name)
    except psutil.NoSuchProcess:
        return False


def kill(processes: dict[int, psutil.Process]) -> None:
    assert processes
    for process in processes.values():
        process.kill()
    psutil.wait_procs(list(processes.values()), 10)


def assert_answers(client: httpx.Client) -> None:
    assert client.post(COMPLETIONS, json=BODY).status_code == 200


def test_haproxy_is_started_again(fleet: Fleet) -> None:
    old = processes_of(fleet, "haproxy")
    kill(old)
    for client in fleet.ingress_clients():
        assert_answers(client)
    eventually(lambda: assert_answers(fleet.http), BACK_TIMEOUT_S)
    new = processes_of(fleet, "haproxy")
    assert new
    assert not new.keys() & old.keys()


def test_without_the_controller_requests_go_on_and_the_next_one_deploys(fleet: Fleet) -> None:
    name = "ray::ServeController"
    settings = fleet.settings
    old = processes_of(fleet, name)
    replicas = {replica.replica for replica in fleet.replicas("Executor")}
    kill(old)
    for _ in range(20):
        assert_answers(fleet.http)
    eventually(lambda: assert_another(fleet, name, old), BACK_TIMEOUT_S)
    routing = msgspec.structs.replace(settings.routing, policy="round_robin")
    fleet.redeploy(msgspec.structs.replace(settings, routing=routing))
    try:
        eventually(lambda: assert_reason(fleet, "policy"))
    finally:
        fleet.redeploy(settings)
    eventually(lambda: assert_reason(fleet, "overlap"))
    assert {replica.replica for replica in fleet.replicas("Executor")} == replicas


def assert_another(fleet: Fleet, name: str, old: dict[int, psutil.Process]) -> None:
    found = processes_of(fleet, name)
    assert found
    assert not found.keys() & old.keys()


def assert_reason(fleet: Fleet, reason: str) -> None:
    for client in fleet.ingress_clients():
        answer = client.post(COMPLETIONS, json=BODY)
        assert answer.headers["x-cachelane-reason"] == reason


@pytest.fixture
def cluster(
    one_fleet: OneFleet, kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """A head without work, and two nodes with two GPUs each."""
    one_fleet.stop()
    folder = tmp_path_factory.mktemp("nodes")
    with running_cluster(folder, SETTINGS, 2, kafka_libs) as running:
        yield running


SETTINGS: dict[str, Any] = {
    "executor": {"kind": "scripted", "num_replicas": 3, "num_gpus": 1, "block_size": 32},
    "events": {"load_interval_s": 0.2, "heartbeat_timeout_s": 1.5},
    "http": {"num_ingress": 2},
}


def test_a_node_dies_and_another_takes_its_place(cluster: LocalCluster) -> None:
    node = next(n for n in cluster.sessions if n != HEAD and cluster.executors_on(n))
    before = executors_of(cluster)
    cluster.kill(node)
    with httpx.Client(base_url=cluster.url, timeout=20) as client:
        eventually(lambda: assert_answers(client), BACK_TIMEOUT_S)
        left = executors_of(cluster)
        assert left < before
        cluster.start_node()
        eventually(lambda: assert_whole(cluster, client, left), 2 * BACK_TIMEOUT_S)
        assert_answers(client)


def executors_of(cluster: LocalCluster) -> set[str]:
    return {f"{r.replica}-0" for r in cluster.replicas() if r.deployment == "Executor"}


def assert_whole(cluster: LocalCluster, client: httpx.Client, left: set[str]) -> None:
    """Three workers, those that were left among them; every one known, also to who just came."""
    running = executors_of(cluster)
    assert len(running) == 3
    assert left < running
    rows = client.get("/fleet").json()["workers"]
    assert {row["worker"] for row in rows if not row["stale"]} == running
