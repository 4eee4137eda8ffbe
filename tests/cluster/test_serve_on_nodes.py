"""A whole node dies, of several on one machine. The shared fleet must be stopped for it; the file
before this one has done that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.local_cluster import HEAD, LocalCluster, running_cluster
from tests.cluster.conftest import OneFleet
from tests.cluster.eventually import eventually
from tests.cluster.test_infrastructure_failures import BACK_TIMEOUT_S, assert_answers

# Nodes outlive the objects that started them, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")

SETTINGS: dict[str, Any] = {
    "executor": {"kind": "scripted", "num_replicas": 3, "num_gpus": 1, "block_size": 32},
    "events": {"load_interval_s": 0.2, "heartbeat_timeout_s": 1.5},
    "http": {"num_ingress": 2},
}


@pytest.fixture
def cluster(
    one_fleet: OneFleet, kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """A head without work, and two nodes with two GPUs each."""
    one_fleet.stop()
    folder = tmp_path_factory.mktemp("nodes")
    with running_cluster(folder, SETTINGS, 2, kafka_libs) as running:
        yield running


def test_a_node_dies_and_another_takes_its_place(cluster: LocalCluster) -> None:
    node = next(n for n in cluster.sessions if n != HEAD and cluster.executors_on(n))
    before = executors_of(cluster)
    cluster.kill(node)
    with httpx.Client(base_url=cluster.url, timeout=20) as client:
        eventually(lambda: assert_answers(client), BACK_TIMEOUT_S)
        left = executors_of(cluster) & before  # one may have been replaced already, on the other
        assert left
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
