"""The committed launch files: they are what the settings render, and agree with the code."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.deploy.compose import KAFKA_IMAGE
from infra.deploy.nodes import (
    HAPROXY_BINARY,
    HAPROXY_WRAPPER,
    MODELS_DIR,
    RAY_VERSION,
    node_environment,
)
from infra.deploy.render import render_all
from infra.kafka_jars import LOCK_PATH
from infra.settings import Settings, load_settings, to_settings
from infra.topic_specs import topic_specs
from serve_app.cli_config import serve_config

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "infra" / "deploy"
FILES = (
    "ray_cluster.yaml",
    "serve.yaml",
    "rayservice.yaml",
    "kafka-topics.yaml",
    "network-policy.yaml",
    "compose.yaml",
)


def committed(name: str) -> Path:
    return ROOT / name if name == "ray_cluster.yaml" else FOLDER / name


@pytest.fixture(scope="module")
def settings() -> Settings:
    return load_settings(FOLDER / "cachelane.yaml", env={})


@pytest.fixture(scope="module")
def rendered(settings: Settings) -> dict[str, str]:
    return render_all(settings, serve_config(settings))


def documents(rendered: dict[str, str], name: str) -> list[Any]:
    return list(yaml.safe_load_all(rendered[name]))


def test_these_files_are_rendered(rendered: dict[str, str]) -> None:
    assert sorted(rendered) == sorted(FILES)


@pytest.mark.parametrize("name", FILES)
def test_what_is_committed_is_what_is_rendered(rendered: dict[str, str], name: str) -> None:
    assert committed(name).read_text("utf-8") == rendered[name], "run `cachelane config deploy`"


def test_the_service_of_the_rayservice_is_the_serve_file(rendered: dict[str, str]) -> None:
    (service,) = documents(rendered, "rayservice.yaml")
    (serve,) = documents(rendered, "serve.yaml")
    assert yaml.safe_load(service["spec"]["serveConfigV2"]) == serve
    assert service["spec"]["rayClusterConfig"]["rayVersion"] == version("ray") == RAY_VERSION


def test_every_node_has_the_environment_that_serving_needs(rendered: dict[str, str]) -> None:
    (service,) = documents(rendered, "rayservice.yaml")
    cluster = service["spec"]["rayClusterConfig"]
    pods = [cluster["headGroupSpec"], cluster["workerGroupSpecs"][0]]
    expected = node_environment()
    del expected["RAY_AUTH_MODE"]  # the operator's, by authOptions
    assert cluster["authOptions"] == {"mode": "token"}
    for pod in pods:
        (container,) = pod["template"]["spec"]["containers"]
        assert {e["name"]: e["value"] for e in container["env"]} == expected
    (ray_cluster,) = documents(rendered, "ray_cluster.yaml")
    for commands in ("head_start_ray_commands", "worker_start_ray_commands"):
        words = ray_cluster[commands][-1].split()
        assert {f"{n}={v}" for n, v in node_environment().items()} <= set(words)


def test_nothing_runs_on_a_head(rendered: dict[str, str]) -> None:
    (service,) = documents(rendered, "rayservice.yaml")
    (ray_cluster,) = documents(rendered, "ray_cluster.yaml")
    head = service["spec"]["rayClusterConfig"]["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert ray_cluster["available_node_types"]["head"]["resources"] == {"CPU": 0}


def test_a_node_offers_what_the_executors_ask_for(rendered: dict[str, str]) -> None:
    (serve,) = documents(rendered, "serve.yaml")
    (ray_cluster,) = documents(rendered, "ray_cluster.yaml")
    (executor,) = [
        deployment
        for deployment in serve["applications"][0]["deployments"]
        if deployment["name"] == "Executor"
    ]
    wanted = executor["ray_actor_options"]
    offered = ray_cluster["available_node_types"]["gpu"]["resources"]
    assert 0 < wanted["num_gpus"] <= offered["GPU"]
    num_on_node = offered["GPU"] // wanted["num_gpus"]
    assert num_on_node * wanted["num_cpus"] <= offered["CPU"]


def test_ports_agree(rendered: dict[str, str], settings: Settings) -> None:
    (service,) = documents(rendered, "rayservice.yaml")
    (policy,) = documents(rendered, "network-policy.yaml")
    (serve,) = documents(rendered, "serve.yaml")
    (compose,) = documents(rendered, "compose.yaml")
    pod = service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]
    ports = {p["name"]: p["containerPort"] for p in pod["containers"][0]["ports"]}
    public = policy["spec"]["ingress"][1]["ports"]
    assert ports["serve"] == serve["http_options"]["port"] == settings.http.port
    assert [p["port"] for p in public] == [settings.http.port]
    published = compose["services"]["cachelane"]["ports"]
    assert published == [f"127.0.0.1:{settings.http.port}:{settings.http.port}"]


def test_a_grpc_port_is_opened_when_it_is_used(settings: Settings) -> None:
    with_grpc = to_settings({"grpc": {"enabled": True, "port": 9123}})
    files = render_all(with_grpc, serve_config(with_grpc))
    (policy,) = documents(files, "network-policy.yaml")
    assert [p["port"] for p in policy["spec"]["ingress"][1]["ports"]] == [8000, 9123]
    assert "9123" in files["rayservice.yaml"]


def test_topics_are_those_that_the_service_would_create(
    rendered: dict[str, str], settings: Settings
) -> None:
    found = {
        topic["spec"]["topicName"]: (
            topic["spec"]["partitions"],
            topic["spec"]["replicas"],
            topic["spec"]["config"],
        )
        for topic in documents(rendered, "kafka-topics.yaml")
    }
    assert found == {
        name: (spec["num_partitions"], spec["replication_factor"], spec["configs"])
        for name, spec in topic_specs(settings.kafka).items()
    }


def test_the_pods_of_the_policy_are_those_of_the_service(rendered: dict[str, str]) -> None:
    (service,) = documents(rendered, "rayservice.yaml")
    (policy,) = documents(rendered, "network-policy.yaml")
    wanted = policy["spec"]["podSelector"]["matchLabels"].items()
    cluster = service["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert wanted <= group["template"]["metadata"]["labels"].items()


def test_the_operator_reaches_the_pods_however_it_was_installed(rendered: dict[str, str]) -> None:
    """Its Helm chart and its plain manifests give it different names."""
    (policy,) = documents(rendered, "network-policy.yaml")
    (operator,) = policy["spec"]["ingress"][2]["from"]
    assert operator["podSelector"]["matchLabels"] == {
        "app.kubernetes.io/component": "kuberay-operator"
    }


def test_machines_without_gpus_are_not_asked_for_any() -> None:
    plain = to_settings({"deploy": {"gpus_per_node": 0}})
    (ray_cluster,) = documents(render_all(plain, serve_config(plain)), "ray_cluster.yaml")
    assert "--gpus all" not in ray_cluster["docker"]["worker_run_options"]
    assert ray_cluster["available_node_types"]["gpu"]["resources"] == {"CPU": 48}


def test_machines_show_their_models_to_the_containers(
    rendered: dict[str, str], settings: Settings
) -> None:
    (ray_cluster,) = documents(rendered, "ray_cluster.yaml")
    assert f"-v {MODELS_DIR}:{MODELS_DIR}:ro" in ray_cluster["docker"]["worker_run_options"]
    assert settings.model.path is not None
    assert settings.model.path.startswith(f"{MODELS_DIR}/")


def test_the_state_volume_of_compose_belongs_to_the_user_of_the_image(
    rendered: dict[str, str],
) -> None:
    (compose,) = documents(rendered, "compose.yaml")
    (volume,) = compose["services"]["cachelane"]["volumes"]
    text = (FOLDER / "Dockerfile.cpu").read_text("utf-8")
    assert f"install -d -o cachelane -g cachelane {volume.partition(':')[2]}" in text
    assert "USER cachelane" in text


def test_kafka_in_compose_is_the_version_that_is_embedded() -> None:
    (embedded, *_) = json.loads(LOCK_PATH.read_text("utf-8"))["coordinates"]
    assert KAFKA_IMAGE.rpartition(":")[2] == embedded.rpartition(":")[2]


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_images_hold_what_the_nodes_name(kind: str) -> None:
    text = (FOLDER / f"Dockerfile.{kind}").read_text("utf-8")
    assert HAPROXY_WRAPPER in text
    assert HAPROXY_BINARY in text
    copied = re.findall(r"^COPY (.*) (\S+)$", text, re.M)
    for sources, _ in copied:
        for source in sources.split():
            assert (ROOT / source).exists(), source
    assert "install -y --no-install-recommends wget" in text  # of KubeRay's probes
    assert {"controllers", "infra", "serve_app"} <= {target for _, target in copied}
    if kind == "gpu":
        assert f'"ray[serve]=={RAY_VERSION}"' in text
    else:
        assert "-c constraints.txt" in text


def test_how_machines_are_launched_restarts_no_replica() -> None:
    plain = serve_config(to_settings({}))
    other = serve_config(to_settings({"deploy": {"max_nodes": 99, "image": "other"}}))
    assert plain == other
