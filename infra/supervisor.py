"""Starting all that `cachelane up` needs on one machine, side by side: broker, Ray, model, service.

Owns the order and the bookkeeping: each child is in `state.json` as soon as it exists, and a start
that fails or is interrupted leaves nothing behind. Does not know what a model is or how the service
is deployed; both are given.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import psutil
import yaml

from controllers.errors import SetupError
from infra import preflight
from infra.local_broker_tansu import start_local_broker
from infra.process_session import ProcessId
from infra.ray_env import ray_environment
from infra.ray_head import RayHead, last_line, ray_log, start_ray_head
from infra.run_state import RunState, StateDir
from infra.service_url import grpc_address_of, not_ready_reason, url_of
from infra.settings import Settings, environment, to_values
from infra.shutdown import shut_down
from infra.together import run_together

READY_TIMEOUT_S = 120.0
POLL_S = 0.1
# A broker that is only starting holds nothing yet, and takes long to end by itself.
BROKER_STOP_S = 2.0

Say = Callable[[str], None]


class Progress(Protocol):
    """Where a start tells how far it is; called from several threads."""

    def say(self, part: str, message: str) -> None:
        """`part` is under way; the first call begins it."""
        ...

    def done(self, part: str, message: str) -> None: ...

    def fail(self, part: str, message: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What is given from outside.

    `fetch_model` returns the path of a model file, "" if none is needed. `deploy_command` reads one
    JSON line, {"settings": path, "address": host:port}, and exits 0 when the service runs.
    """

    fetch_model: Callable[[Say], str]
    deploy_command: Sequence[str]


class Supervisor:
    """One start for one state folder."""

    def __init__(
        self, state: StateDir, settings: Settings, parts: Parts, progress: Progress
    ) -> None:
        self._state = state
        self._settings = settings
        self._parts = parts
        self._progress = progress
        self._run = RunState(
            starter=_this_process(), url=url_of(settings), grpc=grpc_address_of(settings)
        )

    def check(self) -> None:
        """Raises SetupError naming what this machine lacks."""
        http = self._settings.http
        preflight.check_interpreter()
        preflight.check_port(http.host, http.port)
        grpc = self._settings.grpc
        if grpc.enabled:
            variable = "CACHELANE_GRPC__PORT"
            ways = f"grpc.port or {variable}="
            preflight.check_port(grpc.host, grpc.port, "gRPC", variable, ways)
        preflight.check_disk(self._state.path)
        preflight.check_shared_memory()
        preflight.check_profiling(self._settings.executor.profiling)
        preflight.check_kafka(self._settings.kafka.bootstrap_servers)

    def start(self) -> RunState:
        """Returns when requests are served. Raises SetupError; then nothing is left running."""
        self._state.create()
        with self._state.lock():
            shut_down(self._state)
            self.check()
            try:
                return self._start()
            except BaseException:
                self._give_up()
                raise

    def _give_up(self) -> None:
        _end_helpers()
        shut_down(self._state, BROKER_STOP_S)

    def _start(self) -> RunState:
        self._save()
        ray_env = ray_environment(self._state.path)
        self._progress.say("Ray", "starting")
        head = start_ray_head(self._state, ray_env, self._num_cpus())
        self._save(ray_address=head.address, sessions={"ray": head.process})
        # Importing Ray takes this child as long as Ray's own start; it waits for its line then.
        child = self._spawn_deploy(ray_env)
        self._save(sessions={**self._run.sessions, "deploy": _id_of(child)})
        found = run_together(
            {
                "Kafka": self._start_broker,
                "Ray": lambda: self._wait_for_ray(head),
                "model": self._fetch_model,
            },
            stop=self._give_up,
        )
        self._save(bootstrap_servers=found["Kafka"])
        self._write_settings(found["Kafka"], found["model"])
        self._deploy(child, head.address)
        self._save(is_ready=True)
        return self._run

    def _save(self, **changes: object) -> None:
        self._run = msgspec.structs.replace(self._run, **changes)
        self._state.save(self._run)

    def _num_cpus(self) -> int:
        """Enough that no replica waits for a core that Ray thinks is taken; nothing is pinned."""
        executor, http = self._settings.executor, self._settings.http
        wanted = executor.num_replicas * executor.num_cpus + http.num_ingress * http.num_cpus
        return math.ceil(wanted) + max(2, os.cpu_count() or 1)

    def _start_broker(self) -> str:
        own = self._settings.kafka.bootstrap_servers
        if own is not None:
            self._progress.done("Kafka", f"yours at {own}")
            return own
        self._progress.say("Kafka", "starting")
        broker = start_local_broker(self._state.path, self._say("Kafka"))
        self._progress.done("Kafka", f"{broker.bootstrap}")
        return broker.bootstrap

    def _wait_for_ray(self, head: RayHead) -> str:
        head.wait_until_ready(ray_log(self._state))
        self._progress.done("Ray", head.address)
        return head.address

    def _fetch_model(self) -> str:
        self._progress.say("model", "looking for it")
        path = self._parts.fetch_model(self._say("model"))
        self._progress.done("model", Path(path).name if path else "none needed")
        return path

    def _say(self, part: str) -> Say:
        return lambda message: self._progress.say(part, message)

    def _write_settings(self, bootstrap_servers: str, model_path: str) -> None:
        values = to_values(self._settings)
        values["kafka"]["bootstrap_servers"] = bootstrap_servers
        values["model"]["path"] = model_path or None
        file = self._state.settings_file
        file.touch()
        file.chmod(0o600)  # may hold the password of a Kafka
        file.write_text(yaml.safe_dump(values, sort_keys=False), "utf-8")

    def _spawn_deploy(self, ray_env: Mapping[str, str]) -> subprocess.Popen[str]:
        with self._deploy_log.open("wb") as log:
            return subprocess.Popen(
                list(self._parts.deploy_command),
                env=environment(**ray_env),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def _deploy(self, child: subprocess.Popen[str], address: str) -> None:
        self._progress.say("service", "starting replicas")
        line = json.dumps({"settings": str(self._state.settings_file), "address": address})
        with contextlib.suppress(BrokenPipeError):
            assert child.stdin is not None
            child.stdin.write(line + "\n")
            child.stdin.close()
        self._wait_for(child)
        if child.returncode != 0:
            raise SetupError(
                f"the service did not start: {last_line(self._deploy_log)} "
                f"(see {self._deploy_log} and {self._state.logs / 'ray'})"
            )
        self._progress.say("service", "waiting until it is ready")
        self._wait_until_ready()
        self._progress.done("service", self._run.url)

    def _wait_for(self, child: subprocess.Popen[str]) -> None:
        """Ray's own clients wait for ever for a cluster that has died."""
        while child.poll() is None:
            self._check_ray()
            time.sleep(POLL_S)

    def _check_ray(self) -> None:
        if not self._run.has_cluster():
            raise SetupError(f"Ray ended: see {self._state.logs / 'ray'}")

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while (problem := not_ready_reason(self._run.url)) is not None:
            self._check_ray()
            if time.monotonic() > deadline_s:
                raise SetupError(
                    f"the service is not ready after {READY_TIMEOUT_S:.0f} s: {problem} "
                    f"(see {self._state.logs / 'ray'})"
                )
            time.sleep(POLL_S)

    @property
    def _deploy_log(self) -> Path:
        return self._state.logs / "deploy.log"


def _this_process() -> ProcessId:
    found = ProcessId.of(os.getpid())
    assert found is not None
    return found


def _end_helpers() -> None:
    """Downloads under way: children of ours in no session of their own."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()


def _id_of(child: subprocess.Popen[str]) -> ProcessId:
    found = ProcessId.of(child.pid)
    if found is None:
        raise SetupError("the deployment ended at once")
    return found
