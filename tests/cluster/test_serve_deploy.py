"""`serve deploy` of what `cachelane config serve` prints, on a cluster that has nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from infra.local_broker import LocalBroker
from infra.ports import LOOPBACK, free_ports
from infra.process_session import ProcessId, end_sessions
from infra.ray_env import ray_dir, ray_environment
from infra.ray_head import remove_ray_dir, start_ray_head
from infra.replica_processes import replicas_of
from infra.run_state import StateDir
from infra.settings import environment, to_settings
from serve_app.cli_config import serve_config
from tests.cluster.conftest import OneFleet
from tests.cluster.eventually import eventually
from tests.cluster.fleet import START_TIMEOUT_S

# The head outlives the object that started it, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")

BIN = Path(sys.executable).parent
BODY = {"prompt": "deployed from a file", "max_tokens": 3}


@dataclass
class Cluster:
    """A head with a dashboard, which is where `serve deploy` talks to."""

    state: StateDir
    head: ProcessId
    dashboard: str
    env: dict[str, str]
    bootstrap_servers: str
    http_port: int

    def settings(self, **policies: Any) -> dict[str, Any]:
        return {
            "executor": {"kind": "scripted", "num_replicas": 2, "block_size": 32},
            "kafka": {"bootstrap_servers": self.bootstrap_servers},
            "http": {"port": self.http_port},
            **policies,
        }

    def deploy(self, values: dict[str, Any]) -> None:
        file = self.state.path / "serve.yaml"
        file.write_text(yaml.safe_dump(serve_config(to_settings(values))), "utf-8")
        command = [str(BIN / "serve"), "deploy", "-a", self.dashboard, str(file)]
        done = subprocess.run(
            command,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def pids(self) -> dict[str, int]:
        return {replica.replica: replica.process.pid for replica in replicas_of(self.head.pid)}


@pytest.fixture
def cluster(
    one_fleet: OneFleet, kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    one_fleet.stop()
    state = StateDir.at(tmp_path_factory.mktemp("deployed"))
    state.create()
    broker = LocalBroker.start(state.path, libs_dir=kafka_libs)
    dashboard, http_port = free_ports(2)
    # The package is not installed where a replica would look for it: it is this checkout.
    env = {**ray_environment(state.path), "PYTHONPATH": os.getcwd()}
    head = start_ray_head(state, env, num_cpus=4, dashboard_port=dashboard)
    try:
        head.wait_until_ready(state.logs / "ray.log")
        yield Cluster(
            state=state,
            head=head.process,
            dashboard=f"http://{LOOPBACK}:{dashboard}",
            env=environment(**env),
            bootstrap_servers=broker.bootstrap,
            http_port=http_port,
        )
    finally:
        end_sessions([head.process], 3.0)
        broker.stop(10.0)
        remove_ray_dir(state)
    assert not ray_dir(state.path).exists()


def test_serve_deploy_and_a_changed_policy(cluster: Cluster) -> None:
    eventually(lambda: assert_listens(cluster.dashboard), 60.0)
    cluster.deploy(cluster.settings())
    url = f"http://{LOOPBACK}:{cluster.http_port}"
    eventually(lambda: assert_serves(url, 200), 90.0)
    pids = eventually(lambda: pids_of(cluster, 3), 60.0)  # the first executor serves already
    no_batch = {"retention": {"request_types": {"nightly": {}}}, "tiers": {"rules": NIGHT}}
    assert httpx.post(f"{url}/v1/completions", json=nightly(), timeout=30).status_code == 400
    cluster.deploy(cluster.settings(**no_batch))
    eventually(lambda: assert_serves(url, 200, nightly()), 30.0)
    assert cluster.pids() == pids
    more = cluster.settings(**no_batch)
    more["executor"]["num_replicas"], more["http"]["num_ingress"] = 3, 2
    cluster.deploy(more)
    eventually(lambda: assert_joined(cluster, pids, 2), 60.0)


NIGHT = {"batch": {"rank": 7}}


def pids_of(cluster: Cluster, num: int) -> dict[str, int]:
    pids = cluster.pids()
    assert len(pids) == num
    return pids


def assert_joined(cluster: Cluster, before: dict[str, int], num_new: int) -> None:
    pids = cluster.pids()
    assert before.items() <= pids.items(), "a replica that was there was replaced"
    assert len(pids) == len(before) + num_new


def nightly() -> dict[str, Any]:
    return {**BODY, "request_type": "nightly"}


def assert_listens(url: str) -> None:
    assert httpx.get(url, timeout=5).status_code < 500


def assert_serves(url: str, status: int, body: dict[str, Any] | None = None) -> None:
    answer = httpx.post(f"{url}/v1/completions", json=body or BODY, timeout=30)
    assert answer.status_code == status, json.dumps(answer.text)
