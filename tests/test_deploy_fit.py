from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from controllers.errors import SettingsError
from infra.deploy.fit import check_fit, doubts
from infra.settings import load_settings, to_settings
from serve_app.cli_app import app_for
from serve_app.executor_resources import num_gpus_of

app = app_for([])

COMMITTED = Path(__file__).parent.parent / "infra" / "deploy" / "cachelane.yaml"


def test_the_committed_settings_fit_and_leave_no_doubt() -> None:
    settings = load_settings(COMMITTED, env={})
    check_fit(settings, num_gpus_of(settings.executor))
    assert doubts(settings) == []


@pytest.mark.parametrize(
    ("values", "num_gpus", "message"),
    [
        (
            {"deploy": {"min_nodes": 9, "max_nodes": 2}},
            1,
            "deploy.max_nodes: 2 must be at least deploy.min_nodes, 9",
        ),
        (
            {"deploy": {"gpus_per_node": 4, "max_nodes": 2}},
            16,
            "deploy.gpus_per_node: 4 on each of 2 nodes are too few for an executor that takes 16",
        ),
        (
            {"deploy": {"gpus_per_node": 0}},
            0.5,
            "deploy.gpus_per_node: 0 on each of 8 nodes are too few for an executor that takes 0.5",
        ),
        (
            {"executor": {"num_cpus": 100}, "http": {"num_cpus": 2}},
            1,
            "deploy.cpus_per_node: 48 is less than executor.num_cpus, 100, or http.num_cpus, 2",
        ),
        (
            {"grpc": {"enabled": True, "port": 8265}},
            1,
            "port 8265 of a node is for dashboard and for serve-grpc",
        ),
        ({"http": {"port": 6379}}, 1, "port 6379 of a node is for gcs-server and for serve"),
    ],
)
def test_what_no_cluster_could_run(values: dict[str, Any], num_gpus: float, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_fit(to_settings(values), num_gpus)
    assert str(caught.value) == message


def test_an_executor_may_take_several_nodes() -> None:
    check_fit(to_settings({"deploy": {"gpus_per_node": 8, "max_nodes": 2}}), 16)


def test_what_only_one_machine_reaches_is_told() -> None:
    assert doubts(to_settings({"grpc": {"enabled": True}})) == [
        "http.host is 127.0.0.1: only its own machine reaches it; 0.0.0.0 is for all",
        "grpc.host is 127.0.0.1: only its own machine reaches it; 0.0.0.0 is for all",
        "kafka.bootstrap_servers is not set; a deployed service needs a Kafka that every node "
        "reaches",
    ]


@pytest.mark.parametrize("size", ["lots", "16GB", "16", "0Gi", "1.5Gi"])
@pytest.mark.parametrize("name", ["shared_memory", "memory_per_node"])
def test_sizes_are_as_kubernetes_writes_them(name: str, size: str) -> None:
    with pytest.raises(SettingsError, match=rf"^deploy\.{name}: "):
        to_settings({"deploy": {name: size}})


def test_what_does_not_fit_is_not_written(tmp_path: Path) -> None:
    file, out = tmp_path / "c.yaml", tmp_path / "out"
    file.write_text("deploy: {min_nodes: 9, max_nodes: 2}\n")
    done = CliRunner().invoke(app, ["config", "deploy", str(file), "--out", str(out)])
    assert isinstance(done.exception, SettingsError)
    assert not out.exists()
