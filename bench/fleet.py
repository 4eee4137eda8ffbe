"""A fleet of its own for a benchmark: `cachelane up` in a temporary folder, down at the end.

Jars and the default model are shared with the checkout's `.cachelane`: nothing is fetched twice.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from infra.ports import free_ports
from infra.run_state import RunState, StateDir
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


@contextlib.contextmanager
def running_fleet(settings: dict[str, Any]) -> Iterator[Fleet]:
    """Start with these settings on a free port; stop it and remove its folder afterwards."""
    (port,) = free_ports(1)
    settings = {**settings, "http": {**settings.get("http", {}), "port": port}}
    with tempfile.TemporaryDirectory(prefix="cachelane-bench-") as folder:
        state_dir = Path(folder)
        _share_downloads(state_dir)
        config = state_dir / "bench.yaml"
        config.write_text(yaml.safe_dump(settings))
        try:
            _cachelane("up", "--config", str(config), "--detach", "--state-dir", folder)
            yield Fleet(state_dir, f"http://127.0.0.1:{port}")
        finally:
            _cachelane("down", "--state-dir", folder)


def _share_downloads(state_dir: Path) -> None:
    for name in ("models", "kafka/libs"):
        source = SHARED / name
        if source.is_dir():
            shutil.copytree(source, state_dir / name)


def _cachelane(*args: str) -> None:
    command = [sys.executable, "-m", "serve_app.cli", *args]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
