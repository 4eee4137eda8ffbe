"""`cachelane doctor` and `cachelane profile` on a fleet that runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.settings import environment
from tests.cluster.fleet import START_TIMEOUT_S, Fleet, cachelane

SECONDS = ("--seconds", "1")


def test_a_capture_of_one_replica(fleet: Fleet, tmp_path: Path) -> None:
    worker, process = sorted(fleet.executors().items())[0]
    with busy(fleet, worker):  # what does nothing has no stacks to count
        said = cachelane(fleet.state, "profile", worker, *SECONDS, "--output", str(tmp_path))
    (file,) = tmp_path.iterdir()
    path, how = said.splitlines()
    assert path == str(file)
    assert how.startswith("py-spy, ")
    assert file.name.startswith(process.replica)
    assert re.search(r"\w+ \(\S+\.py:\d+\)", file.read_text("utf-8"))


@contextmanager
def busy(fleet: Fleet, worker: str) -> Iterator[None]:
    """It makes tokens of a stream that begins again when it has ended."""
    is_over = threading.Event()
    body = {"prompt": "to be looked at " * 4, "max_tokens": 500}

    def ask() -> None:
        while not is_over.is_set():
            pin = {"x-cachelane-pin": worker}
            fleet.http.post("/v1/completions", json=body, headers=pin).raise_for_status()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_a_replica_that_is_not_there_is_one_line(fleet: Fleet, tmp_path: Path) -> None:
    command = ["profile", "nosuch-0", *SECONDS, "--output", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "serve_app.cli", *command, "--state-dir", str(fleet.state.path)],
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        env=environment(),
        check=False,
    )
    known = ", ".join(sorted(fleet.executors()))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"cachelane: no replica or worker 'nosuch-0'; known: {known}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_running_fleet_is_well(fleet: Fleet) -> None:
    found = {f["id"]: f for f in json.loads(cachelane(fleet.state, "doctor", "--json"))}
    assert [f for f in found.values() if f["level"] == "error"] == []
    about = [f for id, f in found.items() if id.startswith(("fleet.", "kafka."))]
    assert about
    assert [f for f in about if f["level"] != "ok"] == []
    assert found["fleet.workers"]["found"] == f"{len(fleet.executors())} workers publish"
    assert found["machine.ports"]["found"] == "the ports serve this fleet"
