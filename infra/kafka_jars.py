"""The jars of the embedded broker: what they must be, and getting them.

`infra/kafka/lock.json` names every jar with its sha256. A folder either holds exactly the locked
jars or is replaced as a whole; a jar that does not match is never run.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from controllers.errors import BrokerError

KAFKA_DIR = Path(__file__).parent / "kafka"
LOCK_PATH = KAFKA_DIR / "lock.json"
FETCH_TIMEOUT_S = 900

# Runs in a process of its own: the resolver logs as it likes and, without the default timeout set
# here, waits for ever where a firewall drops packets. Each coordinate is resolved alone: resolved
# together, one may pull another's dependencies back to an old version.
_FETCH_SCRIPT = """
import functools, sys
import requests
requests.request = functools.partial(requests.request, timeout=(10, 60))
import jgo
for coordinate in sys.argv[1:]:
    for jar in jgo.build(coordinate).all_jars:
        print("JAR", jar)
"""

Fetch = Callable[[Iterable[str]], list[Path]]


@dataclass(frozen=True, slots=True)
class Lock:
    """`coordinates` (`group:artifact:version`) resolve to exactly the files in `jar_to_sha256`."""

    coordinates: tuple[str, ...]
    jar_to_sha256: dict[str, str]

    @classmethod
    def load(cls, path: Path = LOCK_PATH) -> Lock:
        data = json.loads(path.read_text("utf-8"))
        return cls(tuple(data["coordinates"]), data["jars"])

    def save(self, path: Path = LOCK_PATH) -> None:
        data = {"coordinates": self.coordinates, "jars": dict(sorted(self.jar_to_sha256.items()))}
        path.write_text(json.dumps(data, indent=2) + "\n", "utf-8")

    def find_fault(self, jars: Iterable[Path]) -> str:
        """What about these files differs from the lock, as one sentence; empty if nothing does."""
        name_to_path = {jar.name: jar for jar in jars}
        missing = self.jar_to_sha256.keys() - name_to_path.keys()
        if missing:
            return f"{len(missing)} jars of the lock are missing, such as {min(missing)}"
        unknown = name_to_path.keys() - self.jar_to_sha256.keys()
        if unknown:
            return f"{len(unknown)} jars are not in the lock, such as {min(unknown)}"
        for name, path in sorted(name_to_path.items()):
            if sha256(path) != self.jar_to_sha256[name]:
                return f"{path} has a sha256 other than the lock's"
        return ""


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def ensure_jars(
    libs_dir: Path,
    lock: Lock,
    fetch: Fetch | None = None,
    on_progress: Callable[[str], None] = lambda message: None,
) -> None:
    """Make `libs_dir` hold exactly the locked jars; 0.1 s when it already does.

    Raises BrokerError when they cannot be fetched or are not those of the lock; `libs_dir` is then
    as before.
    """
    if libs_dir.is_dir() and not lock.find_fault(libs_dir.iterdir()):
        return
    on_progress("fetching Apache Kafka (45 MB, once)")
    jars = (fetch or fetch_jars)(lock.coordinates)
    fault = lock.find_fault(jars)
    if fault:
        raise BrokerError(f"the fetched Kafka is not the locked one: {fault}; delete it and retry")
    _install(jars, libs_dir)


def fetch_jars(coordinates: Iterable[str]) -> list[Path]:
    """Resolve and download through jgo, into its cache; one path per file name.

    Raises BrokerError, for example without a network. Takes 20 s, well under 1 s from the cache.
    """
    command = [sys.executable, "-c", _FETCH_SCRIPT, *coordinates]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BrokerError(f"fetching Kafka took longer than {FETCH_TIMEOUT_S} s") from error
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise BrokerError(
            f"cannot fetch Kafka ({reason[:300]}): check the network, "
            "or use an existing cluster with KAFKA=host:port"
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("JAR ")]
    return list({path.name: path for path in (Path(line[4:]) for line in lines)}.values())


def make_lock(coordinates: tuple[str, ...]) -> Lock:
    """Resolve `coordinates` now and take what comes as the truth."""
    return Lock(coordinates, {jar.name: sha256(jar) for jar in fetch_jars(coordinates)})


def _install(jars: Iterable[Path], libs_dir: Path) -> None:
    """Copy into a new folder beside, then swap: nobody ever sees half of it."""
    libs_dir.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix="libs-", dir=libs_dir.parent))
    try:
        for jar in jars:
            shutil.copyfile(jar, fresh / jar.name)
        if libs_dir.exists():
            shutil.rmtree(libs_dir)
        fresh.rename(libs_dir)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise BrokerError(f"cannot write {libs_dir}: {error.strerror}") from error
