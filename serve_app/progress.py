"""How far a start is, for a person: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

RUNNING, DONE, FAILED = "running", "done", "failed"
MARKS = {DONE: Text("✓", "green"), FAILED: Text("✗", "red")}


@dataclass
class _Row:
    message: str
    state: str = RUNNING
    started_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None
    spinner: Spinner = field(default_factory=lambda: Spinner("dots"))

    def elapsed_s(self) -> float:
        return (self.ended_s or time.monotonic()) - self.started_s


class StartProgress:
    """An `infra.supervisor.Progress`: a context manager around a start, called by any thread."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: dict[str, _Row] = {}
        self._lock = threading.Lock()
        self._live = Live(
            get_renderable=self.render, console=console, refresh_per_second=10, transient=False
        )

    def __enter__(self) -> StartProgress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            for part in [part for part, row in self._rows.items() if row.state == RUNNING]:
                self.fail(part, "stopped")
        if self._console.is_terminal:
            self._live.stop()

    def say(self, part: str, message: str) -> None:
        with self._lock:
            row = self._rows.setdefault(part, _Row(message))
            row.message, row.state = message, RUNNING
        if message.startswith("WARNING"):
            self._console.print(Text(f"{part}: {message}", "yellow"))
        elif not self._console.is_terminal:
            self._print(part, f"{message} ...")

    def done(self, part: str, message: str) -> None:
        self._end(part, message, DONE)

    def fail(self, part: str, message: str) -> None:
        self._end(part, message, FAILED)

    def render(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(width=1)
        table.add_column(min_width=8)
        table.add_column(overflow="ellipsis", no_wrap=True)
        table.add_column(justify="right", min_width=7)
        with self._lock:
            for part, row in self._rows.items():
                mark = MARKS.get(row.state, row.spinner)
                table.add_row(mark, part, row.message, f"{row.elapsed_s():.1f} s")
        return table

    def _end(self, part: str, message: str, state: str) -> None:
        with self._lock:
            row = self._rows.setdefault(part, _Row(message))
            row.message, row.state, row.ended_s = message, state, time.monotonic()
        if not self._console.is_terminal:
            self._print(part, f"{message} ({row.elapsed_s():.1f} s)")

    def _print(self, part: str, text: str) -> None:
        self._console.print(Text(f"{part}: {text}"), soft_wrap=True)
