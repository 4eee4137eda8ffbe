"""A fleet of its own for a benchmark: `cachelane up` in a temporary folder, down at the end.

Jars and the default model are shared with the checkout's `.cachelane`: nothing is fetched twice.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import yaml

from bench.stopping import undisturbed, unwinding
from controllers.errors import SetupError
from infra.ports import free_ports
from infra.process_session import session_members
from infra.replica_processes import ReplicaProcess, replicas_of
from infra.run_state import RunState, StateDir
from infra.settings import load_settings, to_values
from serve_app.client import first_model

SHARED = Path(".cachelane")


class Fleet:
    """A running fleet; `url` has no trailing slash."""

    def __init__(self, state_dir: Path, url: str) -> None:
        self.state_dir = state_dir
        self.url = url

    def model(self) -> str:
        return first_model(self.url)

    def state(self) -> RunState:
        state = StateDir.at(self.state_dir).load()
        assert state is not None, "it runs, so its state was saved"
        return state

    def replicas(self) -> list[ReplicaProcess]:
        return replicas_of(self.state().sessions["ray"].pid)

    def processes(self) -> list[psutil.Process]:
        """Of Ray and Serve."""
        return session_members(self.state().sessions["ray"])

    def redeploy(self, section: str, **changes: Any) -> None:
        """Deploy again with other values of one section, as a changed configuration would."""
        settings = to_values(load_settings(StateDir.at(self.state_dir).settings_file, env={}))
        settings[section].update(changes)
        path = self.state_dir / "changed.yaml"
        path.write_text(yaml.safe_dump(settings))
        state = self.state()
        subprocess.run(
            [sys.executable, "-m", "serve_app.deploy"],
            input=json.dumps({"settings": str(path), "address": state.ray_address}) + "\n",
            # The cluster's own, with its token: it was made when the fleet was started.
            env=psutil.Process(state.sessions["ray"].pid).environ(),
            text=True,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


@contextlib.contextmanager
def running_fleet(settings: dict[str, Any]) -> Iterator[Fleet]:
    """Start with these settings on a free port; stop it and remove its folder afterwards, also if
    this process is terminated. Raises SetupError if it does not start."""
    (port,) = free_ports(1)
    settings = {**settings, "http": {**settings.get("http", {}), "port": port}}
    with unwinding(), tempfile.TemporaryDirectory(prefix="cachelane-bench-") as folder:
        state_dir = Path(folder)
        _share_downloads(state_dir)
        config = state_dir / "bench.yaml"
        config.write_text(yaml.safe_dump(settings))
        try:
            _cachelane("up", "--config", str(config), "--detach", "--state-dir", folder)
            yield Fleet(state_dir, f"http://127.0.0.1:{port}")
        finally:
            with undisturbed():
                _cachelane("down", "--state-dir", folder)


def _share_downloads(state_dir: Path) -> None:
    for name in ("models", "kafka/libs"):
        source = SHARED / name
        if source.is_dir():
            shutil.copytree(source, state_dir / name)


def _cachelane(*args: str) -> None:
    """A signal for the group of this process is not for it: it is told to end by this one alone."""
    command = [sys.executable, "-m", "serve_app.cli", *args]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as child:
        try:
            status = child.wait()
        except BaseException:
            child.terminate()  # it takes down what it has started
            child.wait()
            raise
    if status != 0:
        raise SetupError(f"cachelane {args[0]} failed: {status}")
