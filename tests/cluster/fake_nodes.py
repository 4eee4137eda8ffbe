"""A Ray cluster of one machine whose GPU nodes come and go: real autoscaler, pretended machines.

Ray's own helper for this needs a file that its wheel lacks, and stops every Ray on the machine.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from infra.ports import free_ports
from infra.settings import environment
from tests.cluster.eventually import eventually

IP = "127.0.0.1"
MAX_SOCKET_PATH = 31  # bytes of the folder's name; see infra.ray_env
_COMMANDS = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray")
_LISTS = (
    *(f"{name}_commands" for name in (*_COMMANDS, "worker_start_ray")),
    "cluster_synced_files",
    "rsync_exclude",
    "rsync_filter",
)
_ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_ADDRESS": "",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_FAKE_CLUSTER": "1",
    "RAY_enable_autoscaler_v2": "0",
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": "f" * 51 + "00000",
    # The pretended nodes' addresses lead nowhere: calls go through Ray instead of gRPC.
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "0",
}


class FakeNodes:
    """The head runs when the constructor returns; GPU nodes are added when they are needed."""

    def __init__(self, folder: Path, max_gpu_nodes: int) -> None:
        """`folder` must be new and its name short: sockets are in it."""
        assert len(os.fsencode(folder)) <= MAX_SOCKET_PATH, folder
        port, client_port, agent_port = free_ports(3)
        self.address = f"{IP}:{port}"
        self.environment = environment(**_ENVIRONMENT)
        self._folder = folder
        config = folder / "config.json"
        config.write_text(json.dumps(_cluster(self.address, max_gpu_nodes)))
        command = [
            str(Path(sys.executable).with_name("ray")),
            *("start", "--head", "--block", f"--node-ip-address={IP}", f"--port={port}"),
            *(f"--temp-dir={folder}", f"--autoscaling-config={config}"),
            *("--include-dashboard=false", "--num-cpus=2", "--num-gpus=0"),
            *("--object-store-memory=100000000", f"--ray-client-server-port={client_port}"),
            f"--dashboard-agent-listen-port={agent_port}",
        ]
        with (folder / "head.log").open("wb") as log:
            self._head = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        eventually(lambda: self._assert_up(port), timeout_s=30.0)

    def _assert_up(self, port: int) -> None:
        assert self._head.poll() is None, (self._folder / "head.log").read_text()
        with socket.socket() as probe:
            assert probe.connect_ex((IP, port)) == 0

    def stop(self) -> None:
        """By process: what has our folder on its command line, and all that it started."""
        ours = {p for p in psutil.process_iter() if self._is_ours(p)}
        for process in list(ours):
            with suppress(psutil.Error):
                ours |= set(process.children(recursive=True))
        ours.discard(psutil.Process())
        for process in ours:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(ours, timeout=10)
        self._head.wait(10)

    def _is_ours(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            return any(str(self._folder) in argument for argument in process.cmdline())
        return False


def _cluster(address: str, max_gpu_nodes: int) -> dict[str, Any]:
    """Every key must be there: this provider fills in no defaults."""
    gpu_node = {"CPU": 0, "GPU": 1, "object_store_memory": 10**8}
    return {
        "cluster_name": "fake",
        "max_workers": max_gpu_nodes,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 0.15,  # less, and a busy machine takes a new one for idle
        "head_node_type": "head",
        "provider": {
            "type": "fake_multinode",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "launch_multiple": True,
            "disable_launch_config_check": True,
            "gcs_address": address,
        },
        "available_node_types": {
            "head": {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 0},
            "gpu": {
                "resources": gpu_node,
                "node_config": {},
                "min_workers": 0,
                "max_workers": max_gpu_nodes,
            },
        },
        **{name: {} for name in ("auth", "docker", "file_mounts")},
        "file_mounts_sync_continuously": False,
        **{name: [] for name in _LISTS},
    }
