"""What this machine must have before anything starts: each lack is one line saying what to do.

Checks are independent and raise SetupError. They look only; nothing is changed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path

import psutil

from controllers.errors import BusError, SetupError
from infra.kafka_address import probe
from infra.ports import can_bind

OBJECT_STORE_BYTES = 100_000_000
SHM_DIR = Path("/dev/shm")
SHM_BYTES = OBJECT_STORE_BYTES + 20_000_000
DISK_BYTES = 1_000_000_000  # jars 45 MB, default model 145 MB, Kafka's segments, logs
MAX_TRIED_PORTS = 100


def check_port(
    host: str,
    port: int,
    name: str = "HTTP",
    variable: str = "HTTP_PORT",
    ways: str = "HTTP_PORT= or --http-port",
) -> None:
    """`name` is the protocol; `ways` to choose another port, `variable` the one in the example."""
    if port == 0 or can_bind(port, host):
        return
    tried = range(port + 1, min(port + MAX_TRIED_PORTS, 65536))
    free = next((other for other in tried if can_bind(other, host)), None)
    advice = f", for example {variable}={free}" if free else ""
    raise SetupError(
        f"{name} port {port} of {host} {_why_taken(port)}: "
        f"stop that, or choose another port with {ways}{advice}"
    )


def _why_taken(port: int) -> str:
    if port < 1024 and os.geteuid() != 0:
        return "is for the administrator only or in use"
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            is_listener = connection.status == psutil.CONN_LISTEN
            if is_listener and connection.pid and tuple(connection.laddr)[1:] == (port,):
                return f"is in use by {_name(connection.pid)} (pid {connection.pid})"
    return "is in use"


def _name(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        return str(psutil.Process(pid).name())
    return "a process"


def check_interpreter(path: str = sys.executable) -> None:
    """Ray starts its programs through a shell, without quotes."""
    if len(path.split()) != 1:
        raise SetupError(
            f"Python is at {path!r}, and Ray cannot start from a folder with a space in its name: "
            "move this folder"
        )


def check_disk(path: Path, needed_bytes: int = DISK_BYTES) -> None:
    """`path` or its nearest existing parent must have `needed_bytes` free."""
    existing = next(p for p in [path, *path.parents] if p.exists())
    free = shutil.disk_usage(existing).free
    if free < needed_bytes:
        raise SetupError(
            f"{existing} has {free // 1_000_000} MB free and {needed_bytes // 1_000_000} MB are "
            "needed: free some space, or choose another disk with --state-dir"
        )


def check_shared_memory(path: Path = SHM_DIR, needed_bytes: int = SHM_BYTES) -> None:
    """Ray keeps its objects there; without the folder it uses plain files."""
    if not path.exists():
        return
    free = shutil.disk_usage(path).free
    if free < needed_bytes:
        raise SetupError(
            f"{path} has {free // 1_000_000} MB free, Ray needs {needed_bytes // 1_000_000} MB: "
            "make it larger (in a container: --shm-size=256m)"
        )


def check_model(path: str | None) -> None:
    """None means the default model."""
    if path is None:
        return
    file = Path(path).expanduser()
    if not file.exists():
        raise SetupError(f"model file {path!r} does not exist: MODEL= wants a GGUF file")
    if not os.access(file, os.R_OK):
        raise SetupError(f"model file {path!r} is not readable: chmod +r it")


def check_profiling(profiling: str) -> None:
    """`executor.profiling`; without the program no replica could be started."""
    if profiling == "nsys" and shutil.which("nsys") is None:
        raise SetupError(
            "executor.profiling is nsys, and no nsys is on PATH: install Nsight Systems, or set it "
            "to off"
        )


def check_kafka(bootstrap_servers: str | None) -> None:
    """None means the embedded broker."""
    if bootstrap_servers is None:
        return
    try:
        probe(bootstrap_servers)
    except BusError as error:
        raise SetupError(
            f"{error}: start it, correct KAFKA=host:port, or leave that out for the embedded one"
        ) from error
