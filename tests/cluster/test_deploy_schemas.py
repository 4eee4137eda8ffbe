"""The launch files against Ray's own schemas; no cluster, but seconds of imports."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.serve.schema import ServeDeploySchema

ROOT = Path(__file__).parents[2]


def cluster() -> dict[str, Any]:
    values = yaml.safe_load((ROOT / "ray_cluster.yaml").read_text("utf-8"))
    assert isinstance(values, dict)
    return values


def test_the_cluster_file_is_one_for_ray_up() -> None:
    prepared = prepare_config(cluster())
    validate_config(prepared)
    gpu = prepared["available_node_types"]["gpu"]
    assert (gpu["min_workers"], gpu["max_workers"]) == (1, 8)


def test_the_schema_would_find_a_mistake() -> None:
    wrong = copy.deepcopy(cluster())
    wrong["available_node_types"]["gpu"]["max_wokers"] = 3
    with pytest.raises(Exception, match="max_wokers"):
        validate_config(prepare_config(wrong))


@pytest.mark.parametrize("name", ["serve.yaml", "rayservice.yaml"])
def test_the_service_is_one_for_serve_deploy(name: str) -> None:
    values = yaml.safe_load((ROOT / "infra" / "deploy" / name).read_text("utf-8"))
    if name == "rayservice.yaml":
        values = yaml.safe_load(values["spec"]["serveConfigV2"])
    schema = ServeDeploySchema.model_validate(values)
    (application,) = schema.applications
    assert application.import_path == "serve_app.app:build"
    assert sorted(d.name for d in application.deployments) == ["Executor", "Ingress"]
