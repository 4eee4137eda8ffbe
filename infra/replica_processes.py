"""The processes of one running cluster: which replica is which, and where an ingress listens."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass

import psutil

from controllers.errors import SetupError
from infra.settings import environment_of

_LOG_NAME = re.compile(r"replica_cachelane_(Executor|Ingress)_(\w+)\.log$")
_FIRST_PORT = "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT"
_LAST_PORT = "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT"


@dataclass(frozen=True)
class ReplicaProcess:
    """`replica` is Serve's id, the first part of a worker's name. `port` 0: it serves no HTTP."""

    deployment: str
    replica: str
    process: psutil.Process
    port: int = 0

    def kill(self) -> None:
        """End it as a crash would; returns when it is gone."""
        self.process.kill()
        self.process.wait(10)


def replicas_of(*sessions: int) -> list[ReplicaProcess]:
    """Live replicas among the processes of sessions, named by the processes that lead them."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError, SetupError):
            if os.getsid(process.pid) in sessions and (replica := _replica(process)) is not None:
                found.append(replica)
    return sorted(found, key=lambda replica: replica.replica)


def _replica(process: psutil.Process) -> ReplicaProcess | None:
    """A replica keeps the log open that is named after it."""
    if process.name().startswith("ray::ServeRepl"):
        for file in process.open_files():
            if match := _LOG_NAME.search(file.path):
                return ReplicaProcess(match[1], match[2], process, _http_port(process))
    return None


def _http_port(process: psutil.Process) -> int:
    environ = environment_of(process.pid)
    ports = range(int(environ[_FIRST_PORT]), int(environ[_LAST_PORT]) + 1)
    listening = (c.laddr.port for c in process.net_connections() if c.status == "LISTEN")
    return next((port for port in listening if port in ports), 0)
