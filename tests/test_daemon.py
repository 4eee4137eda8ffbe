"""Background processes: found again by pid file and mark, ended by either starter."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from infra.daemon import _DETACH, Daemon

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER
WAIT_S = 20.0


@pytest.fixture
def spawn(tmp_path: Path):
    made: list[Daemon] = []

    def spawn_one(script: str = SLEEPER) -> Daemon:
        mark = f"mark-{tmp_path}"
        made.append(
            Daemon.spawn(
                [sys.executable, "-c", script, mark],
                mark=mark,
                pid_path=tmp_path / "x.pid",
                log_path=tmp_path / "logs" / "x.log",
                cwd=tmp_path,
            )
        )
        return made[-1]

    yield spawn_one
    for daemon in made:
        daemon.kill()


def attach(tmp_path: Path) -> Daemon | None:
    return Daemon.attach(tmp_path / "x.pid", f"mark-{tmp_path}")


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def log(tmp_path: Path) -> str:
    return (tmp_path / "logs" / "x.log").read_text()


def test_spawn_attach_stop(tmp_path, spawn):
    daemon = spawn()
    until(lambda: log(tmp_path) == "up\n")
    other = attach(tmp_path)
    assert (other.pid, other.is_running(), daemon.is_running()) == (daemon.pid, True, True)
    other.stop(WAIT_S)
    other.stop(WAIT_S)
    assert (other.is_running(), daemon.is_running()) == (False, False)
    assert attach(tmp_path) is None
    assert not (tmp_path / "x.pid").exists()


def test_it_runs_as_soon_as_it_was_started(spawn, monkeypatch):
    """A busy machine may take its time to put the program in the place of the shell's copy."""
    looks = [["sh", "-c", _DETACH, "log", "program"], []]
    whole = psutil.Process.cmdline
    monkeypatch.setattr(
        psutil.Process, "cmdline", lambda process: looks.pop(0) if looks else whole(process)
    )
    assert spawn().is_running()


def test_stop_kills_what_does_not_listen(tmp_path, spawn):
    daemon = spawn(STUBBORN)
    until(lambda: log(tmp_path) == "up\n")
    daemon.stop(0.05)
    assert not daemon.is_running()


def test_killed_process_leaves_its_pid_file_and_is_not_attached(tmp_path, spawn):
    daemon = spawn()
    until(daemon.is_running)
    daemon.kill()
    assert (tmp_path / "x.pid").exists()
    assert attach(tmp_path) is None


def test_process_without_the_mark_is_not_ours(tmp_path, spawn):
    daemon = spawn()
    stranger = Daemon(daemon.pid, "another mark", tmp_path / "other.pid")
    assert not stranger.is_running()
    stranger.stop(WAIT_S)
    stranger.kill()
    until(daemon.is_running)


@pytest.mark.parametrize("text", ["", "abc", "999999999"])
def test_useless_pid_files(tmp_path, text):
    (tmp_path / "x.pid").write_text(text)
    assert attach(tmp_path) is None


def test_program_that_cannot_be_run_says_so_in_the_log(tmp_path):
    daemon = Daemon.spawn(
        ["/no/such/program"],
        mark="/no/such/program",
        pid_path=tmp_path / "x.pid",
        log_path=tmp_path / "logs" / "x.log",
        cwd=tmp_path,
    )
    until(lambda: "/no/such/program" in log(tmp_path))
    until(lambda: not daemon.is_running())


def test_last_log_is_kept(tmp_path, spawn):
    for text in ("first", "second"):
        daemon = spawn(f"print({text!r})")
        until(lambda text=text: log(tmp_path) == f"{text}\n")
        until(lambda daemon=daemon: not daemon.is_running())
    assert (tmp_path / "logs" / "x.old").read_text() == "first\n"
