"""What every node of a cluster has in common, however it is launched: environment, ports, paths.

The one source for the files of this folder. Knows no provider and no file format.
"""

from __future__ import annotations

from infra.ray_env import serving_environment
from infra.settings import Settings

RAY_VERSION = "2.60.0"
GCS_PORT = 6379
DASHBOARD_PORT = 8265
CLIENT_PORT = 10001
METRICS_PORT = 8080
OBJECT_MANAGER_PORT = 8076
# The images link these names to where their Python keeps the files.
HAPROXY_WRAPPER = "/usr/local/bin/cachelane-haproxy"
HAPROXY_BINARY = "/usr/local/bin/haproxy-of-ray"
GCS_STORAGE_DIR = "/var/lib/cachelane/gcs"
MODELS_DIR = "/models"


def node_environment() -> dict[str, str]:
    """Of every Ray process on every node; Ray and Serve read it when they are imported."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_USAGE_STATS_ENABLED": "0",
        **serving_environment(),
        "RAY_SERVE_HAPROXY_BINARY_PATH": HAPROXY_WRAPPER,
        "HAPROXY_BINARY": HAPROXY_BINARY,
    }


def head_environment() -> dict[str, str]:
    """Beside `node_environment`: a head on one machine keeps the cluster's state on its disk."""
    return {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": GCS_STORAGE_DIR}


def ports_of(settings: Settings) -> dict[str, int]:
    """Ports of a node by name; the names are those that KubeRay looks for."""
    ports = {
        "gcs-server": GCS_PORT,
        "dashboard": DASHBOARD_PORT,
        "client": CLIENT_PORT,
        "metrics": METRICS_PORT,
        "serve": settings.http.port,
    }
    if settings.grpc.enabled:
        ports["serve-grpc"] = settings.grpc.port
    return ports
