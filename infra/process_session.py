"""Finding and ending everything that one child process started.

A child started in a session of its own leads it, and whatever it starts stays in that session even
when its parent dies. The system gives no other process the id of a session that still has members,
so the session's id names exactly our processes, also after a crash of the leader.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable

import msgspec
import psutil

CLOCK_TOLERANCE_S = 1.0


class ProcessId(msgspec.Struct, frozen=True):
    """A process, told from a later one with the same id by the time of its start (Unix, s)."""

    pid: int
    create_time: float

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """None if it is gone."""
        try:
            return cls(pid, psutil.Process(pid).create_time())
        except psutil.NoSuchProcess:
            return None

    def is_alive(self) -> bool:
        """False also for a zombie: it ended and its parent has not looked yet."""
        try:
            process = psutil.Process(self.pid)
            is_same = abs(process.create_time() - self.create_time) < CLOCK_TOLERANCE_S
            return is_same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def session_members(leader: ProcessId) -> list[psutil.Process]:
    """Live processes of the session that `leader` leads or led; empty if its id is another's."""
    found = ProcessId.of(leader.pid)
    if found is not None and abs(found.create_time - leader.create_time) >= CLOCK_TOLERANCE_S:
        return []
    if leader.create_time < psutil.boot_time() - CLOCK_TOLERANCE_S:
        return []
    return [process for process in psutil.process_iter() if _is_member(process, leader)]


def end_sessions(leaders: Iterable[ProcessId], timeout_s: float) -> None:
    """Ask every member to end, kill what is left after `timeout_s`; returns when none is left."""
    leaders = list(leaders)
    deadline_s = time.monotonic() + timeout_s
    _signal(leaders, psutil.Process.terminate)
    while members := _members(leaders):
        if time.monotonic() > deadline_s:
            _signal(leaders, psutil.Process.kill)
        psutil.wait_procs(members, timeout=0.1)


def _is_member(process: psutil.Process, leader: ProcessId) -> bool:
    try:
        return (
            os.getsid(process.pid) == leader.pid
            and process.create_time() >= leader.create_time - CLOCK_TOLERANCE_S
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


def _members(leaders: Iterable[ProcessId]) -> list[psutil.Process]:
    return [process for leader in leaders for process in session_members(leader)]


def _signal(leaders: Iterable[ProcessId], send: Callable[[psutil.Process], None]) -> None:
    for process in _members(leaders):
        with contextlib.suppress(psutil.NoSuchProcess):
            send(process)
