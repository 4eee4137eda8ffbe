"""What runs for one state folder: `state.json`, which `up` writes and every other command reads.

Owns the folder's layout. The file survives a crash of its writer; nothing in it is believed before
the processes it names have been looked at.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from controllers.errors import SetupError
from infra.process_session import ProcessId, session_members


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """`starter` is the process of `up`; `sessions` lead everything else but the embedded broker."""

    starter: ProcessId
    url: str
    grpc: str = ""  # host:port, if it is on
    is_ready: bool = False
    bootstrap_servers: str = ""
    ray_address: str = ""
    sessions: dict[str, ProcessId] = {}

    def is_running(self) -> bool:
        """Whether anything of it is alive."""
        return self.starter.is_alive() or any(
            session_members(leader) for leader in self.sessions.values()
        )

    def has_cluster(self) -> bool:
        """Whether Ray's head is alive; without it, what is left serves nothing."""
        head = self.sessions.get("ray")
        return head is not None and head.is_alive()


@dataclass(frozen=True, slots=True)
class StateDir:
    """The folder of one running system; `path` is absolute."""

    path: Path

    @classmethod
    def at(cls, path: Path) -> StateDir:
        return cls(path.expanduser().resolve())

    @property
    def state_file(self) -> Path:
        return self.path / "state.json"

    @property
    def settings_file(self) -> Path:
        """The settings as they run: with the model's path and the broker's address."""
        return self.path / "settings.yaml"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def models(self) -> Path:
        return self.path / "models"

    def create(self) -> None:
        """Raises SetupError if it cannot be written."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            self.models.mkdir(exist_ok=True)
        except OSError as error:
            raise SetupError(
                f"cannot write the state folder {self.path} ({error.strerror}): "
                "choose another with --state-dir"
            ) from error

    def load(self) -> RunState | None:
        """None if there is none; a damaged file counts as none. Raises SetupError."""
        try:
            return msgspec.json.decode(self.state_file.read_bytes(), type=RunState)
        except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
            return None
        except OSError as error:
            raise SetupError(f"cannot read {self.state_file}: {error.strerror}") from error

    def save(self, state: RunState) -> None:
        """Replaces the file in one step, readable by its owner only."""
        new = self.state_file.with_suffix(".new")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(state)) + b"\n")
        new.replace(self.state_file)

    def forget(self) -> None:
        self.state_file.unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Held while starting; ends with the process. Raises SetupError if another one holds it."""
        with (self.path / "lock").open("wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise SetupError(
                    f"another start is under way for {self.path}: wait for it, or stop it with "
                    "`cachelane down`"
                ) from error
            yield
