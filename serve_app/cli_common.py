"""What several commands share: options, where the running service is, how things are printed."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from controllers.errors import SettingsError, SetupError
from infra.run_state import RunState, StateDir

StateDirOption = Annotated[
    Path, typer.Option("--state-dir", help="Folder for state, logs, data and models.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
UrlOption = Annotated[
    str | None, typer.Option("--url", help="Service to ask; default: the one of --state-dir.")
]
DEFAULT_STATE_DIR = Path(".cachelane")
_GZIP_MAGIC = b"\x1f\x8b"


def console() -> Console:
    """Standard output; never cuts or colours what a program reads."""
    return Console(highlight=False)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))


def read_bytes(path: Path) -> bytes:
    """A file, plain or gzip. Raises SettingsError."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data
    except (OSError, EOFError, zlib.error) as error:
        reason = isinstance(error, OSError) and error.strerror
        raise SettingsError(f"cannot read {path}: {reason or error}") from error


def running(state_dir: Path) -> RunState:
    """What runs for the folder. Raises SetupError if nothing does."""
    state = StateDir.at(state_dir)
    run = state.load()
    if run is None or not run.is_running():
        raise SetupError(
            f"nothing is running for {state.path}: start it with `cachelane up` or `make up`"
        )
    return run


def service_url(url: str | None, state_dir: Path) -> str:
    """Without a slash at its end. Raises SetupError."""
    if url is not None and not url.startswith(("http://", "https://")):
        raise SetupError(f"--url is {url!r}: expected http://host:port")
    return (url or running(state_dir).url).rstrip("/")
