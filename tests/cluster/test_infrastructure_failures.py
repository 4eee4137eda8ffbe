"""What is not ours dies: HAProxy, Serve's controller. Requests come back, or go on.

For a node see `test_serve_on_nodes`.
"""

from __future__ import annotations

import httpx
import msgspec
import psutil

from infra.process_session import session_members
from tests.cluster.eventually import eventually
from tests.cluster.fleet import Fleet

COMPLETIONS = "/v1/completions"
BODY = {"prompt": "whatever happens " * 4, "max_tokens": 2}
BACK_TIMEOUT_S = 90.0


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
