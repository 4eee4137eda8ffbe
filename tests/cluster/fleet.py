"""A whole fleet started by the command line, and what a test may ask of it from outside."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from infra.local_broker import LocalBroker
from infra.replica_processes import ReplicaProcess, replicas_of
from infra.run_state import RunState, StateDir
from infra.settings import Settings, environment, load_settings, to_values
from tests.cluster.eventually import eventually

START_TIMEOUT_S = 200.0
HTTP_TIMEOUT_S = 30.0
BLOCK_SIZE = 32
IDLE = {"in_flight": 0, "held": 0, "reserved": 0, "reservations_expired": 0}
IDLE_WORKER = {
    "stale": False,
    "num_active": 0,
    "num_queued": 0,
    "used_blocks": {"gpu": 0, "host": 0},
}


@dataclass
class Fleet:
    """A running fleet; made by `start_fleet`. `http` talks to it through HAProxy."""

    state: StateDir
    run: RunState
    http: httpx.Client
    _direct: dict[int, httpx.Client] = field(default_factory=dict)
    _deployed: Settings | None = None

    @property
    def url(self) -> str:
        return self.run.url

    @property
    def settings(self) -> Settings:
        """As the fleet was deployed last."""
        return self._deployed or load_settings(self.state.settings_file, env={})

    @property
    def broker(self) -> LocalBroker:
        broker = LocalBroker.attach(self.state.path)
        assert broker is not None
        return broker

    def replicas(self, deployment: str) -> list[ReplicaProcess]:
        found = replicas_of(self.run.sessions["ray"].pid)
        return [replica for replica in found if replica.deployment == deployment]

    def executors(self) -> dict[str, ReplicaProcess]:
        """By worker id."""
        return {f"{r.replica}-0": r for r in self.replicas("Executor")}

    @contextlib.contextmanager
    def stopped(self, *workers: str) -> Iterator[None]:
        """They make nothing meanwhile, however fast the machine is; all of them if none is named.

        One that is killed meanwhile stays dead.
        """
        executors = self.executors()
        processes = [executors[worker].process for worker in workers or executors]
        for process in processes:
            process.suspend()
        try:
            yield
        finally:
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()

    def ingress_clients(self) -> list[httpx.Client]:
        """One for each ingress process, past HAProxy."""
        ports = [replica.port for replica in self.replicas("Ingress")]
        assert 0 not in ports, "an ingress does not listen yet"
        for port in set(ports) - self._direct.keys():
            self._direct[port] = http_client(f"http://127.0.0.1:{port}")
        return [self._direct[port] for port in ports]

    def views(self) -> list[Any]:
        """GET /fleet of every ingress."""
        return [client.get("/fleet").json() for client in self.ingress_clients()]

    def redeploy(self, settings: Settings) -> None:
        """Deploy the application anew, as a changed configuration would."""
        path = self.state.path / "changed.yaml"
        path.write_text(yaml.safe_dump(to_values(settings), sort_keys=False), "utf-8")
        order = {"settings": str(path), "address": self.run.ray_address}
        done = subprocess.run(
            [sys.executable, "-m", "serve_app.deploy"],
            input=json.dumps(order) + "\n",
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            # The cluster's own, with its token: it was made when the fleet was started.
            env=psutil.Process(self.run.sessions["ray"].pid).environ(),
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self._deployed = settings

    def overlaps(self, body: dict[str, Any]) -> list[dict[str, int]]:
        """What each ingress believes of a prompt: overlap blocks by worker."""
        return [overlaps_of(client, body) for client in self.ingress_clients()]

    def close(self) -> None:
        for client in (self.http, *self._direct.values()):
            client.close()


def start_fleet(folder: Path, kafka_libs: Path, values: dict[str, Any]) -> Fleet:
    """`cachelane up` with these settings, in its own state folder; jars are not fetched again."""
    state = StateDir.at(folder)
    (state.path / "kafka").mkdir(parents=True)
    (state.path / "kafka" / "libs").symlink_to(kafka_libs, target_is_directory=True)
    config = state.path / "config.yaml"
    config.write_text(yaml.safe_dump(values), "utf-8")
    try:
        cachelane(state, "up", "--config", str(config), "--detach")
    except BaseException:
        cachelane(state, "down")  # one that was given up may have got far
        raise
    run = state.load()
    assert run is not None
    return Fleet(state, run, http_client(run.url))


def cachelane(state: StateDir, *arguments: str) -> str:
    """Run the command line; what it printed. Fails with all it printed."""
    command = [sys.executable, "-m", "serve_app.cli", *arguments, "--state-dir", str(state.path)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def stop_fleet(fleet: Fleet) -> None:
    """`cachelane down`; asserts that it left no process."""
    fleet.close()
    broker = LocalBroker.attach(fleet.state.path)
    assert cachelane(fleet.state, "down") == "stopped\n"
    assert broker is None or not broker.is_running()
    assert not fleet.run.is_running()


def http_client(url: str) -> httpx.Client:
    limits = httpx.Limits(max_connections=256, max_keepalive_connections=64)
    return httpx.Client(base_url=url, timeout=HTTP_TIMEOUT_S, limits=limits)


def rows_of(view: Any) -> dict[str, Any]:
    """Rows of GET /fleet by worker."""
    return {row["worker"]: row for row in view["workers"]}


def candidates_of(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    """Candidates of POST /fleet/route for a body with one prompt, by worker."""
    (decision,) = client.post("/fleet/route", json=body).raise_for_status().json()["data"]
    return {candidate["worker"]: candidate for candidate in decision["candidates"]}


def overlaps_of(client: httpx.Client, body: dict[str, Any]) -> dict[str, int]:
    return {w: found["overlap_blocks"] for w, found in candidates_of(client, body).items()}


def assert_idle(fleet: Fleet) -> None:
    """No request anywhere: not in an engine, at a gate or in a router's books; all is heard of."""
    for view in fleet.views():
        assert view["ready"]
        booked = {name: view["routing"][name] for name in IDLE}
        assert booked == IDLE
        for row in view["workers"]:
            figures = {name: row[name] for name in IDLE_WORKER}
            assert figures == IDLE_WORKER, row


def wait_idle(fleet: Fleet, timeout_s: float = 30.0) -> None:
    eventually(lambda: assert_idle(fleet), timeout_s)
