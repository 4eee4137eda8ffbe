"""Ending everything that `up` started for one state folder, whatever became of `up` itself.

Safe to call again, from another process, and after a crash. Ends processes only; data stays.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

from infra.local_broker_tansu import attach_local_broker
from infra.process_session import ProcessId, end_sessions
from infra.ray_env import ray_dir
from infra.ray_head import remove_ray_dir
from infra.run_state import RunState, StateDir

STARTER_TIMEOUT_S = 30.0
# What Ray does after being asked to end takes half a minute and is of no use to us.
SESSION_TIMEOUT_S = 3.0
BROKER_TIMEOUT_S = 15.0


def shut_down(state: StateDir, broker_timeout_s: float = BROKER_TIMEOUT_S) -> bool:
    """End it all and forget it; returns when nothing is left. False if nothing was running.

    A broker that has not ended after `broker_timeout_s` is killed.
    """
    run = state.load()
    was_running = run is not None and run.is_running()
    if run is not None:
        _end_starter(run)
        run = state.load() or run
    strays = list(_stray_leaders(ray_dir(state.path)))
    leaders = [*(run.sessions.values() if run else ()), *strays]
    broker = attach_local_broker(state.path)
    stopping = threading.Thread(target=broker.stop, args=(broker_timeout_s,)) if broker else None
    if stopping:
        stopping.start()
    end_sessions(leaders, SESSION_TIMEOUT_S)
    if stopping:
        stopping.join()
    remove_ray_dir(state)
    state.forget()
    return was_running or bool(strays) or broker is not None


def _end_starter(run: RunState) -> None:
    """A foreground `up` stops what it started by itself; this waits for it."""
    if run.starter.pid == os.getpid() or not run.starter.is_alive():
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        starter = psutil.Process(run.starter.pid)
        starter.terminate()
        try:
            starter.wait(STARTER_TIMEOUT_S)
        except psutil.TimeoutExpired:
            starter.kill()


def _stray_leaders(folder: Path) -> Iterator[ProcessId]:
    """Leaders of Ray clusters in that folder, for when the state file is lost.

    Only options of Ray's own programs name the folder as `--option=<folder>...`.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            options = [arg for arg in process.cmdline() if arg.startswith("--")]
            if any(_is_within(option.partition("=")[2], folder) for option in options):
                leader = os.getsid(process.pid)
                yield ProcessId.of(leader) or ProcessId(leader, process.create_time())


def _is_within(value: str, folder: Path) -> bool:
    return value == str(folder) or value.startswith(f"{folder}/")
