"""Machines as well: a replica that needs a GPU brings its node, and the node goes when it goes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from infra.ports import free_ports
from infra.settings import to_settings, to_values
from tests.cluster.eventually import eventually
from tests.cluster.fake_nodes import FakeNodes
from tests.cluster.fleet import http_client
from tests.kafka_fixtures import TestBroker

TIMEOUT_S = 100.0
GPU_NODES = """
import json, ray, sys
ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
print(json.dumps(sum(n["Alive"] and "GPU" in n["Resources"] for n in ray.nodes())), flush=True)
for _ in sys.stdin:
    print(json.dumps(sum(n["Alive"] and "GPU" in n["Resources"] for n in ray.nodes())), flush=True)
"""


def values(broker: TestBroker, port: int) -> dict[str, Any]:
    return {
        "executor": {
            "kind": "scripted",
            "block_size": 32,
            "num_gpus": 1,
            "scripted": {"prefill_ms": 1.0, "prefill_ms_per_token": 0.5, "decode_ms": 5.0},
        },
        "kafka": {"bootstrap_servers": broker.bootstrap, "topic_prefix": "nodes"},
        "autoscaling": {
            "enabled": True,
            "max_replicas": 2,
            "interval_s": 0.5,
            "window_s": 3.0,
            "down_settle_s": 3.0,
            "down_cooldown_s": 1.0,
            "cold_start_s": 1.0,
            "lookahead_s": 0.0,
        },
        # With a CPU of its own: a node without any in use counts as idle, whoever is on it.
        "http": {"port": port, "num_cpus": 1},
    }


class Nodes:
    """How many GPU nodes the cluster has, as a driver of its own sees it."""

    def __init__(self, cluster: FakeNodes) -> None:
        self._driver = subprocess.Popen(
            [sys.executable, "-c", GPU_NODES, cluster.address],
            env=cluster.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def count(self) -> int:
        assert self._driver.stdin is not None
        self._driver.stdin.write("\n")
        self._driver.stdin.flush()
        return self._read()

    def _read(self) -> int:
        assert self._driver.stdout is not None
        return int(json.loads(self._driver.stdout.readline()))

    def close(self) -> None:
        self._driver.communicate(timeout=20)


@pytest.fixture
def cluster() -> Iterator[FakeNodes]:
    folder = Path(tempfile.mkdtemp(prefix="cl-nodes-", dir="/tmp"))
    running = FakeNodes(folder, max_gpu_nodes=2)
    yield running
    running.stop()
    shutil.rmtree(folder, ignore_errors=True)


def deploy(cluster: FakeNodes, folder: Path, settings: dict[str, Any]) -> None:
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump(to_values(to_settings(settings))), "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "serve_app.deploy"],
        input=json.dumps({"settings": str(path), "address": cluster.address}) + "\n",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=cluster.environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def asking(http: httpx.Client, statuses: set[int]) -> Iterator[None]:
    """Eight clients that ask without a pause, each time for something new."""
    is_stopping = threading.Event()

    def ask(client: int) -> None:
        number = 0
        while not is_stopping.is_set():
            number += 1
            prompt = f"{client} {number} " + "something new each time " * 17
            body = {"prompt": prompt, "max_tokens": 4}
            statuses.add(http.post("/v1/completions", json=body).status_code)

    threads = [threading.Thread(target=ask, args=[client]) for client in range(8)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_stopping.set()
        for thread in threads:
            thread.join()


@pytest.mark.timeout(300)
@pytest.mark.nodes
def test_nodes_come_and_go_with_the_replicas(
    cluster: FakeNodes, kafka_broker: TestBroker, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    deploy(cluster, tmp_path, values(kafka_broker, port))
    nodes, statuses = Nodes(cluster), set[int]()
    assert nodes.count() == 1
    with http_client(f"http://127.0.0.1:{port}") as http:
        with asking(http, statuses):
            eventually(lambda: assert_fleet(http, nodes, 2), TIMEOUT_S)
        eventually(lambda: assert_fleet(http, nodes, 1), TIMEOUT_S)
    nodes.close()
    assert statuses == {200}


def assert_fleet(http: httpx.Client, nodes: Nodes, num: int) -> None:
    """As many workers as GPU nodes."""
    assert len(http.get("/fleet").json()["workers"]) == num
    assert nodes.count() == num
