"""Starting one local Ray head as a child process. Talks to it by command line and port only.

Owns the head's command, its files and its log. Imports no Ray.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controllers.errors import SetupError
from infra.ports import LOOPBACK, free_ports, is_listening
from infra.preflight import OBJECT_STORE_BYTES
from infra.process_session import ProcessId
from infra.ray_env import ray_dir
from infra.run_state import StateDir
from infra.settings import environment

START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class RayHead:
    """A running head: leader of the session of every process of the cluster."""

    process: ProcessId
    address: str

    def wait_until_ready(self, log_path: Path) -> None:
        """Until its control service accepts connections. Raises SetupError if it ends or hangs."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        port = int(self.address.rpartition(":")[2])
        while not is_listening(port):
            if not self.process.is_alive():
                raise SetupError(f"Ray ended at once: {last_line(log_path)} (see {log_path})")
            if time.monotonic() > deadline_s:
                raise SetupError(f"Ray did not start in {START_TIMEOUT_S:.0f} s: see {log_path}")
            time.sleep(0.05)


def start_ray_head(
    state: StateDir, ray_env: Mapping[str, str], num_cpus: int, dashboard_port: int | None = None
) -> RayHead:
    """Start it in a session of its own; `num_cpus` is what Ray may hand out, not what it uses.

    `dashboard_port` None: without a dashboard, which takes a second and 100 MB.

    `ray_env` from `ray_environment`. Returns at once; see `RayHead.wait_until_ready`.
    """
    folder = _fresh_folder(ray_dir(state.path))
    address = f"{LOOPBACK}:{free_ports(1)[0]}"
    with ray_log(state).open("wb") as log:
        child = subprocess.Popen(
            [*_command(folder, address, num_cpus), *_dashboard(dashboard_port)],
            env=environment(**ray_env),
            cwd=state.path,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _link(state.logs / "ray", folder / "session_latest" / "logs")
    process = ProcessId.of(child.pid)
    if process is None:
        raise SetupError(f"Ray ended at once: {last_line(ray_log(state))}")
    return RayHead(process, address)


def _fresh_folder(folder: Path) -> Path:
    """The name can be guessed, so what another user put there must not be used."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise SetupError(f"cannot make {folder} ({error.strerror}): remove it") from error
    return folder


def _command(folder: Path, address: str, num_cpus: int) -> list[str]:
    return [
        ray_program(),
        "start",
        "--head",
        "--block",
        f"--port={address.rpartition(':')[2]}",
        f"--num-cpus={num_cpus}",
        f"--ray-client-server-port={free_ports(1)[0]}",
        *node_options(folder),
        "--include-log-monitor=false",
        "--no-monitor",  # the cluster's own autoscaler: there is one machine
    ]


def ray_program() -> str:
    return str(Path(sys.executable).with_name("ray"))


def node_options(folder: Path, ip: str = LOOPBACK) -> list[str]:
    """What keeps a node on `ip`, its files in `folder`, and off the ports of every other node."""
    agent, agent_grpc, metrics, object_manager, node_manager = free_ports(5)
    return [
        f"--node-ip-address={ip}",
        f"--temp-dir={folder}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--dashboard-agent-listen-port={agent}",
        f"--dashboard-agent-grpc-port={agent_grpc}",
        f"--metrics-export-port={metrics}",
        f"--object-manager-port={object_manager}",
        f"--node-manager-port={node_manager}",
        "--disable-usage-stats",
    ]


def _dashboard(port: int | None) -> list[str]:
    if port is None:
        return ["--include-dashboard=false"]
    return ["--include-dashboard=true", f"--dashboard-host={LOOPBACK}", f"--dashboard-port={port}"]


def remove_ray_dir(state: StateDir) -> None:
    """Delete the sockets of an ended cluster and move its logs into the state folder."""
    folder = ray_dir(state.path)
    logs = folder / "session_latest" / "logs"
    kept = state.logs / "ray"
    if logs.is_dir():
        _unlink(kept)
        # Names of workers that never wrote are many and say nothing.
        shutil.copytree(logs, kept, symlinks=True, ignore=_empty_files)
    elif kept.is_symlink():
        _unlink(kept)
    shutil.rmtree(folder, ignore_errors=True)


def ray_log(state: StateDir) -> Path:
    return state.logs / "ray.log"


def last_line(log_path: Path) -> str:
    """Last line that says something; a log that is missing or empty says so."""
    with contextlib.suppress(OSError):
        lines = [line.strip() for line in log_path.read_text("utf-8", "replace").splitlines()]
        if texts := [line for line in lines if line]:
            return texts[-1]
    return "it said nothing"


def _empty_files(folder: str, names: list[str]) -> list[str]:
    paths = {name: Path(folder, name) for name in names}
    return [n for n, path in paths.items() if path.is_file() and not path.stat().st_size]


def _link(link: Path, target: Path) -> None:
    _unlink(link)
    os.symlink(target, link)


def _unlink(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
