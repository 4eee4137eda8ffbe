"""`ray_cluster.yaml` for `ray up`: a head without work, and GPU machines that come and go.

Owns the shape of the cluster. AWS is live; other providers are in the file as comments, so that one
file serves all and the tests can still check what is live.
"""

from __future__ import annotations

from typing import Any

import yaml

from infra.deploy.nodes import (
    CLIENT_PORT,
    DASHBOARD_PORT,
    GCS_PORT,
    GCS_STORAGE_DIR,
    METRICS_PORT,
    MODELS_DIR,
    OBJECT_MANAGER_PORT,
    head_environment,
    node_environment,
)
from infra.settings import Settings

TOKEN_FILE = "~/.ray/auth_token"
MAX_OPEN_FILES = 65536
STOP = "ray stop"

HEADER = """\
# A cluster for `ray up ray_cluster.yaml`; then `serve deploy`. See docs/operations.md.
# Written by `cachelane config deploy`: change infra/deploy/cachelane.yaml, not this file.
# Every GPU machine has the model under /models: in its disk image, or a file system mounted there.
# The token keeps strangers out: `ray get-auth-token --generate` once, where you run `ray up`.
"""
OTHER_PROVIDERS = """
# Google Cloud instead of AWS: replace `provider`, `auth` and each `node_config`.
# provider: {type: gcp, region: us-central1, availability_zone: us-central1-a, project_id: PROJECT}
# auth: {ssh_user: ubuntu}
# head node_config: {machineType: n2-standard-8, disks: [{boot: true, autoDelete: true,
#   initializeParams: {diskSizeGb: 200, sourceImage: IMAGE_WITH_DOCKER_AND_DRIVER}}]}
# gpu node_config: {machineType: a3-highgpu-8g, disks: [...as above], scheduling:
#   {onHostMaintenance: TERMINATE}}
#
# Machines that are there already: replace `provider` and `auth`, and set min_workers and
# max_workers of `gpu` to their number.
# provider: {type: local, head_ip: 10.0.0.1, worker_ips: [10.0.0.2, 10.0.0.3]}
# auth: {ssh_user: ubuntu, ssh_private_key: ~/.ssh/id_ed25519}
"""


def render_ray_cluster(settings: Settings) -> str:
    body = yaml.safe_dump(ray_cluster(settings), sort_keys=False, width=100)
    return HEADER + body + OTHER_PROVIDERS


def ray_cluster(settings: Settings) -> dict[str, Any]:
    """As plain values; what Ray's own schema accepts."""
    deploy = settings.deploy
    return {
        "cluster_name": deploy.name,
        "max_workers": deploy.max_nodes,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": max(1, deploy.idle_timeout_s // 60),
        "docker": {
            "image": deploy.image,
            "container_name": deploy.name,
            "pull_before_run": True,
            "run_options": [
                f"--shm-size={deploy.shared_memory.removesuffix('i').lower()}",
                f"--ulimit nofile={MAX_OPEN_FILES}:{MAX_OPEN_FILES}",
            ],
            "worker_run_options": [
                *(["--gpus all"] if deploy.gpus_per_node else []),
                f"-v {MODELS_DIR}:{MODELS_DIR}:ro",
            ],
            "head_run_options": [f"-v {GCS_STORAGE_DIR}:{GCS_STORAGE_DIR}"],
        },
        "provider": {"type": "aws", "region": deploy.aws.region, "cache_stopped_nodes": False},
        "auth": {"ssh_user": deploy.aws.ssh_user},
        "head_node_type": "head",
        "available_node_types": _node_types(settings),
        "file_mounts": {TOKEN_FILE: TOKEN_FILE},
        "initialization_commands": [f"sudo mkdir -p {GCS_STORAGE_DIR}"],
        # The image holds everything, with the versions of constraints.txt.
        "setup_commands": [f"chmod 600 {TOKEN_FILE}"],
        "head_start_ray_commands": [STOP, _start_head()],
        "worker_start_ray_commands": [STOP, _start_worker()],
    }


def _node_types(settings: Settings) -> dict[str, Any]:
    deploy = settings.deploy
    resources: dict[str, float] = {"CPU": deploy.cpus_per_node}
    if deploy.gpus_per_node:
        resources |= {"GPU": deploy.gpus_per_node, f"accelerator_type:{deploy.accelerator}": 1}
    return {
        # No CPU: nothing but the cluster's own services and HAProxy runs there.
        "head": {"node_config": {"InstanceType": deploy.aws.head_type}, "resources": {"CPU": 0}},
        "gpu": {
            "node_config": {"InstanceType": deploy.aws.worker_type},
            "min_workers": deploy.min_nodes,
            "max_workers": deploy.max_nodes,
            "resources": resources,
        },
    }


def _start_head() -> str:
    return (
        f"{_exports({**node_environment(), **head_environment()})} ray start --head "
        f"--port={GCS_PORT} --object-manager-port={OBJECT_MANAGER_PORT} "
        f"--ray-client-server-port={CLIENT_PORT} --dashboard-host=0.0.0.0 "
        f"--dashboard-port={DASHBOARD_PORT} --metrics-export-port={METRICS_PORT} "
        "--autoscaling-config=~/ray_bootstrap_config.yaml"
    )


def _start_worker() -> str:
    return (
        f"{_exports(node_environment())} ray start --address=$RAY_HEAD_IP:{GCS_PORT} "
        f"--object-manager-port={OBJECT_MANAGER_PORT} --metrics-export-port={METRICS_PORT}"
    )


def _exports(variables: dict[str, str]) -> str:
    words = " ".join(f"{name}={value}" for name, value in variables.items())
    return f"ulimit -n {MAX_OPEN_FILES}; {words}"
