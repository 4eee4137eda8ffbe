"""Several nodes on one machine: a head without work, and nodes that pretend to have GPUs.

Each node is a Ray process of its own with everything it starts in one session, so that a whole node
can be killed. All listen on loopback only. The head keeps its state on disk, so that it can come
back.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from bench.stopping import undisturbed, unwinding
from controllers.errors import SetupError
from infra.local_broker import LocalBroker
from infra.ports import LOOPBACK, free_ports
from infra.process_session import ProcessId, end_sessions, session_members
from infra.ray_env import ray_dir, ray_environment
from infra.ray_head import last_line, node_options, ray_program, remove_ray_dir
from infra.replica_processes import ReplicaProcess, replicas_of
from infra.run_state import StateDir
from infra.settings import environment, to_settings, to_values

# Of all nodes, for Ray: it takes 127.0.0.1 for a name of the machine's outward address once there
# are several nodes, and would listen there. HTTP is on 127.0.0.1, as HAProxy calls its own node.
NODE_IP = "127.0.0.2"
HEAD = "h"  # names of nodes are parts of sockets' paths, which may not be long
CPUS_OF_NODE, GPUS_OF_NODE = 4, 2
DEPLOY_TIMEOUT_S = 120.0
NUM_TRIES = 3
STARTED = "Ray runtime started"  # in what `ray start` prints


class LocalCluster:
    """Made by `running_cluster`. `url` is that of HAProxy, which runs on the head."""

    def __init__(self, folder: Path, broker: LocalBroker, settings: dict[str, Any]) -> None:
        self._state = StateDir.at(folder)
        self._state.create()
        http_port, self._port, self._client_port = free_ports(3)
        self._address = f"{NODE_IP}:{self._port}"
        self.url = f"http://{LOOPBACK}:{http_port}"
        self.settings = {
            **settings,
            "kafka": {"bootstrap_servers": broker.bootstrap},
            "http": {**settings.get("http", {}), "port": http_port, "num_cpus": 1},
        }
        # The package is not installed where a replica would look for it: it is this checkout.
        self._env = {
            **ray_environment(self._state.path),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",  # despite its name
            "PYTHONPATH": str(Path.cwd()),
            "RAY_gcs_storage": "rocksdb",
            "RAY_gcs_storage_path": str(self._state.path / "gcs"),
        }
        self._folder = ray_dir(self._state.path)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._num_started = 0
        self.sessions: dict[str, ProcessId] = {}

    def start_head(self) -> None:
        """It offers no CPU and no GPU; a second start finds what the first one knew."""
        shape = ["--num-cpus=0", "--num-gpus=0", "--no-monitor", "--include-dashboard=false"]
        # Ray looks here whether it runs already, and takes the nodes' processes for a head.
        (self._folder / HEAD / "ray_current_cluster").unlink(missing_ok=True)
        ports = [f"--port={self._port}", f"--ray-client-server-port={self._client_port}"]
        self._start(HEAD, ["--head", *shape, *ports, f"--dashboard-port={free_ports(1)[0]}"])

    def start_node(self) -> None:
        self._num_started += 1
        resources = [f"--num-cpus={CPUS_OF_NODE}", f"--num-gpus={GPUS_OF_NODE}"]
        self._start(f"n{self._num_started}", [f"--address={self._address}", *resources])

    def _start(self, name: str, options: list[str]) -> None:
        """Returns when it is up. Tries again: Ray gives its agents 15 s to come up, however busy
        the machine is."""
        for _ in range(NUM_TRIES):
            self._spawn(name, options)
            if self._has_joined(name):
                return
            self.kill(name)
        raise SetupError(f"{name} did not start: {last_line(self._log(name))}")

    def _spawn(self, name: str, options: list[str]) -> None:
        folder = self._folder / name  # nodes that start in one folder at once want the same sockets
        folder.mkdir(exist_ok=True)
        with self._log(name).open("wb") as log:
            child = subprocess.Popen(
                [ray_program(), "start", "--block", *options, *node_options(folder, NODE_IP)],
                env=environment(**self._env),
                cwd=self._state.path,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process = ProcessId.of(child.pid)
        assert process is not None, last_line(self._log(name))
        self.sessions[name] = process

    def _has_joined(self, name: str) -> bool:
        """Once it has, or has ended."""
        while STARTED not in self._log(name).read_text():
            if not self.sessions[name].is_alive():
                return False
            time.sleep(0.05)
        return True

    def _log(self, name: str) -> Path:
        return self._state.logs / f"{name}.log"

    def kill(self, name: str) -> None:
        """Every process of that node at once, as when its power fails."""
        members = session_members(self.sessions.pop(name))
        for process in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(members, timeout=10)

    def deploy(self, **sections: dict[str, Any]) -> None:
        """With these sections merged into the cluster's settings. Returns when it runs."""
        values = {**self.settings}
        for name, section in sections.items():
            values[name] = {**values.get(name, {}), **section}
        file = self._state.path / "settings.yaml"
        file.write_text(yaml.safe_dump(to_values(to_settings(values)), sort_keys=False), "utf-8")
        order = {"settings": str(file), "address": self._address}
        done = subprocess.run(
            [sys.executable, "-m", "serve_app.deploy"],
            input=json.dumps(order) + "\n",
            env=environment(**self._env),
            capture_output=True,
            text=True,
            timeout=DEPLOY_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def replicas(self) -> list[ReplicaProcess]:
        return replicas_of(*(process.pid for process in self.sessions.values()))

    def processes(self) -> list[psutil.Process]:
        return [p for leader in self.sessions.values() for p in session_members(leader)]

    def executors_on(self, node: str) -> int:
        replicas = replicas_of(self.sessions[node].pid)
        return sum(replica.deployment == "Executor" for replica in replicas)

    def wait_until_served(self) -> None:
        deadline_s = time.monotonic() + DEPLOY_TIMEOUT_S
        while not _is_ready(self.url):
            assert time.monotonic() < deadline_s, "not ready"
            time.sleep(0.1)

    def close(self) -> None:
        end_sessions(self.sessions.values(), 3.0)
        remove_ray_dir(self._state)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", timeout=5.0).status_code == 200
    except httpx.HTTPError:
        return False


@contextlib.contextmanager
def running_cluster(
    folder: Path, settings: dict[str, Any], num_nodes: int, libs_dir: Path
) -> Iterator[LocalCluster]:
    """Head, nodes, broker and the service on them; nothing is left of it afterwards, also if this
    process is terminated.

    `libs_dir`: the broker's jars.
    """
    with unwinding(), _broker(folder, libs_dir) as broker:
        cluster = LocalCluster(folder, broker, settings)
        try:
            cluster.start_head()
            for _ in range(num_nodes):
                cluster.start_node()
            cluster.deploy()
            cluster.wait_until_served()
            yield cluster
        finally:
            with undisturbed():
                cluster.close()


@contextlib.contextmanager
def _broker(folder: Path, libs_dir: Path) -> Iterator[LocalBroker]:
    try:
        yield LocalBroker.start(folder, libs_dir=libs_dir)
    finally:
        with undisturbed():
            running = LocalBroker.attach(folder)  # it may have been on its way up
            if running is not None:
                running.stop(10.0)
