"""KubeRay's RayService: the cluster and the Serve application in one object.

Owns pods and probes; what the application is comes from outside as a Serve configuration.
"""

from __future__ import annotations

from typing import Any

import yaml

from infra.deploy.nodes import MODELS_DIR, RAY_VERSION, node_environment, ports_of
from infra.settings import Settings

API_VERSION = "ray.io/v1"
REDIS_SECRET = {"name": "cachelane-redis", "key": "password"}
HEAD_RESOURCES = {"cpu": "4", "memory": "16Gi"}
# The longest stream.
TERMINATION_S = 3600


def ray_service(settings: Settings, serve_config: dict[str, Any]) -> dict[str, Any]:
    """Needs KubeRay 1.5.1 (token authentication) or newer."""
    deploy = settings.deploy
    return {
        "apiVersion": API_VERSION,
        "kind": "RayService",
        "metadata": {"name": deploy.name, "namespace": deploy.namespace},
        "spec": {
            # After an upgrade the old cluster finishes its streams.
            "rayClusterDeletionDelaySeconds": TERMINATION_S,
            "serveConfigV2": yaml.safe_dump(serve_config, sort_keys=False, width=100),
            "rayClusterConfig": {
                "rayVersion": RAY_VERSION,
                "authOptions": {"mode": "token"},
                "enableInTreeAutoscaling": True,
                "autoscalerOptions": {"idleTimeoutSeconds": deploy.idle_timeout_s},
                # A head pod may come back on another machine: its disk does not follow it.
                "gcsFaultToleranceOptions": {
                    "redisAddress": deploy.redis_address,
                    "redisPassword": {"valueFrom": {"secretKeyRef": REDIS_SECRET}},
                },
                "headGroupSpec": _head(settings),
                "workerGroupSpecs": [_workers(settings)],
            },
        },
    }


def _head(settings: Settings) -> dict[str, Any]:
    return {
        "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
        "template": _pod(settings, "ray-head", HEAD_RESOURCES),
    }


def _workers(settings: Settings) -> dict[str, Any]:
    deploy = settings.deploy
    resources: dict[str, Any] = {
        "cpu": str(deploy.cpus_per_node),
        "memory": deploy.memory_per_node,
    }
    if deploy.gpus_per_node:
        resources["nvidia.com/gpu"] = deploy.gpus_per_node
    pod = _pod(settings, "ray-worker", resources)
    if deploy.gpus_per_node:
        pod["spec"]["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    return {
        "groupName": "gpu",
        "replicas": deploy.min_nodes,
        "minReplicas": deploy.min_nodes,
        "maxReplicas": deploy.max_nodes,
        "rayStartParams": {},
        "template": pod,
    }


def _pod(settings: Settings, name: str, resources: dict[str, Any]) -> dict[str, Any]:
    ports = ports_of(settings)
    if name == "ray-worker":
        ports = {n: ports[n] for n in ports if n in ("metrics", "serve", "serve-grpc")}
    container = {
        "name": name,
        "image": settings.deploy.image,
        "env": [{"name": n, "value": v} for n, v in _environment().items()],
        "ports": [{"name": n, "containerPort": port} for n, port in ports.items()],
        "resources": {"limits": resources, "requests": resources},
        "volumeMounts": [
            {"name": "shared-memory", "mountPath": "/dev/shm"},
            {"name": "models", "mountPath": MODELS_DIR, "readOnly": True},
        ],
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", "ray stop"]}}},
    }
    return {
        "metadata": {"labels": {"app.kubernetes.io/name": settings.deploy.name}},
        "spec": {
            "terminationGracePeriodSeconds": TERMINATION_S,
            "containers": [container],
            "volumes": [
                {
                    "name": "shared-memory",
                    "emptyDir": {"medium": "Memory", "sizeLimit": settings.deploy.shared_memory},
                },
                {"name": "models", "persistentVolumeClaim": {"claimName": "cachelane-models"}},
            ],
        },
    }


def _environment() -> dict[str, str]:
    """KubeRay sets the authentication mode itself, with the token."""
    return {n: v for n, v in node_environment().items() if n != "RAY_AUTH_MODE"}
