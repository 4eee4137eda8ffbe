"""Sessions of child processes: found and ended as a whole, also without their leader."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from infra.process_session import ProcessId, end_sessions, session_members

# Starts a child that ignores SIGTERM, says so, and waits.
LEADER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", '''
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
'''])
time.sleep(600)
"""


@pytest.fixture
def leader() -> Iterator[subprocess.Popen[bytes]]:
    """The leader of a session of two; its child is up."""
    with subprocess.Popen(
        [sys.executable, "-c", LEADER], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        for member in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):  # ended meanwhile
                if os.getsid(member.pid) == process.pid:
                    member.kill()
        process.kill()


def id_of(pid: int) -> ProcessId:
    found = ProcessId.of(pid)
    assert found is not None
    return found


def test_a_session_has_its_leader_and_children(leader: subprocess.Popen[bytes]) -> None:
    members = session_members(id_of(leader.pid))
    assert leader.pid in {process.pid for process in members}
    assert len(members) == 2


def test_members_are_found_after_the_leader_died(leader: subprocess.Popen[bytes]) -> None:
    first = id_of(leader.pid)
    leader.kill()
    leader.wait()
    assert not first.is_alive()
    assert len(session_members(first)) == 1


def test_ending_kills_what_does_not_listen(leader: subprocess.Popen[bytes]) -> None:
    first = id_of(leader.pid)
    end_sessions([first], timeout_s=0.2)
    assert session_members(first) == []


def test_ending_twice_is_harmless(leader: subprocess.Popen[bytes]) -> None:
    first = id_of(leader.pid)
    end_sessions([first], timeout_s=0.2)
    end_sessions([first], timeout_s=0.2)
    assert session_members(first) == []


def test_a_reused_id_is_not_ours(leader: subprocess.Popen[bytes]) -> None:
    other = ProcessId(leader.pid, id_of(leader.pid).create_time - 60)
    end_sessions([other], timeout_s=0.2)
    assert not other.is_alive()
    assert session_members(other) == []
    assert len(session_members(id_of(leader.pid))) == 2


def test_a_process_that_is_gone() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert ProcessId.of(process.pid) is None
    assert not ProcessId(process.pid, time.time()).is_alive()


def test_a_process_from_before_the_last_boot_has_no_members(tmp_path: Path) -> None:
    assert session_members(ProcessId(os.getsid(0), psutil.boot_time() - 3600)) == []
