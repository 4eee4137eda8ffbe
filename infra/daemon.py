"""A background process that outlives its starter and can be found again by a pid file.

A process id alone proves nothing, because the system gives old ids to new processes: a process is
ours only if its command line holds our mark.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

KILL_TIMEOUT_S = 30.0
POLL_S = 0.02

# The shell ends at once, so that the process is nobody's child here: it needs no reaping, and a
# second starter sees it as the first one does.
_DETACH = '"$@" </dev/null >"$0" 2>&1 & echo $!'


class Daemon:
    """One process; `mark` is an argument of its command line that no other process has."""

    def __init__(self, pid: int, mark: str, pid_path: Path) -> None:
        self.pid = pid
        self._mark = mark
        self._pid_path = pid_path

    @classmethod
    def spawn(
        cls, command: Sequence[str], *, mark: str, pid_path: Path, log_path: Path, cwd: Path
    ) -> Daemon:
        """Start in a session of its own; both outputs go to `log_path`, the old log to `.old`.

        A program that cannot be run says so in the log. Raises OSError if a file cannot be written.
        """
        log_path.parent.mkdir(parents=True, exist_ok=True)
        if log_path.exists():
            log_path.replace(log_path.with_suffix(".old"))
        shell = subprocess.run(
            ["sh", "-c", _DETACH, str(log_path), *command],
            stdout=subprocess.PIPE,
            cwd=cwd,
            start_new_session=True,
            check=True,
        )
        daemon = cls(int(shell.stdout), mark, pid_path)
        pid_path.write_text(f"{daemon.pid}\n", "ascii")
        daemon._wait_for_program()
        return daemon

    @classmethod
    def attach(cls, pid_path: Path, mark: str) -> Daemon | None:
        """The running process that the pid file names; None if there is none of ours."""
        try:
            pid = int(pid_path.read_text("ascii"))
        except (FileNotFoundError, ValueError):
            return None
        daemon = cls(pid, mark, pid_path)
        return daemon if daemon.is_running() else None

    def is_running(self) -> bool:
        return self._process() is not None

    def stop(self, timeout_s: float) -> None:
        """Ask it to end, kill it after `timeout_s`; returns when it is gone. Idempotent."""
        process = self._process()
        if process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
            if not self._wait_gone(timeout_s):
                self.kill()
        self._pid_path.unlink(missing_ok=True)

    def kill(self) -> None:
        """End it at once, as a crash would: the pid file stays. Returns when it is gone."""
        process = self._process()
        if process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
            self._wait_gone(KILL_TIMEOUT_S)

    def _wait_for_program(self) -> None:
        """On a busy machine it is the shell's copy for a while, then for a moment a process without
        a command line: whoever looked then would take it for dead."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            while process.status() != psutil.STATUS_ZOMBIE:
                command = process.cmdline()
                if command and _DETACH not in command:
                    return
                time.sleep(POLL_S)

    def _wait_gone(self, timeout_s: float) -> bool:
        """Not `Process.wait`: a zombie that nobody reaps would count as running there."""
        deadline_s = time.monotonic() + timeout_s
        while self.is_running():
            if time.monotonic() > deadline_s:
                return False
            time.sleep(POLL_S)
        return True

    def _process(self) -> psutil.Process | None:
        try:
            process = psutil.Process(self.pid)
            is_ours = process.status() != psutil.STATUS_ZOMBIE and self._mark in process.cmdline()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return None
        return process if is_ours else None
