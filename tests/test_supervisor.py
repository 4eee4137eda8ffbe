"""Starting and stopping without Ray and Kafka: order, failures, and that nothing is left."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controllers.errors import SetupError
from infra.ports import free_ports
from infra.process_session import ProcessId, session_members
from infra.ray_env import ray_dir
from infra.run_state import RunState, StateDir
from infra.service_url import url_of
from infra.settings import Settings, to_settings
from infra.shutdown import shut_down
from infra.supervisor import Parts, Supervisor
from infra.together import run_together


class Lines:
    """A Progress that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def say(self, part: str, message: str) -> None:
        self.lines.append((part, message))

    done = fail = say


def supervisor(state: StateDir, settings: Settings) -> Supervisor:
    parts = Parts(fetch_model=lambda say: "", deploy_command=[sys.executable, "-c", "exit(1)"])
    return Supervisor(state, settings, parts, Lines())


def test_tasks_run_at_the_same_time() -> None:
    barrier = threading.Barrier(3, timeout=10)

    def task() -> str:
        return str(barrier.wait() < 3)

    assert run_together({"a": task, "b": task, "c": task}) == dict.fromkeys("abc", "True")


def test_the_first_failure_is_raised() -> None:
    def fail() -> str:
        raise SetupError("no disk")

    with pytest.raises(SetupError, match="^no disk$"):
        run_together({"good": lambda: "x", "bad": fail})


def test_after_a_failure_the_others_are_waited_for() -> None:
    ended = threading.Event()

    def slow() -> str:
        time.sleep(0.2)
        ended.set()
        return ""

    def fail() -> str:
        raise SetupError("no disk")

    with pytest.raises(SetupError):
        run_together({"slow": slow, "bad": fail})
    assert ended.is_set()


def test_a_failure_stops_what_the_others_wait_for() -> None:
    stopped = threading.Event()
    was_stopped: list[bool] = []

    def wait() -> str:
        was_stopped.append(stopped.wait(60))
        raise SetupError("stopped")

    def fail() -> str:
        raise SetupError("no disk")

    with pytest.raises(SetupError, match="^no disk$"):
        run_together({"waits": wait, "bad": fail}, stop=stopped.set)
    assert was_stopped == [True]


def test_nothing_is_stopped_after_success() -> None:
    stopped = threading.Event()
    assert run_together({"good": lambda: "x"}, stop=stopped.set) == {"good": "x"}
    assert not stopped.is_set()


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:8000"), ("0.0.0.0", "http://127.0.0.1:8000")],
)
def test_the_url_is_one_a_client_here_can_use(host: str, url: str) -> None:
    assert url_of(to_settings({"http": {"host": host}})) == url


def test_a_lack_is_found_before_anything_starts(tmp_path: Path) -> None:
    state = StateDir.at(tmp_path / "state")
    settings = to_settings({"kafka": {"bootstrap_servers": f"127.0.0.1:{free_ports(1)[0]}"}})
    with pytest.raises(SetupError, match="no Kafka at"):
        supervisor(state, settings).start()
    assert state.load() is None
    assert not ray_dir(state.path).exists()


def test_a_deployment_does_not_wait_for_a_dead_cluster(tmp_path: Path) -> None:
    """Ray's clients would: the child here never ends either."""
    state = StateDir.at(tmp_path)
    waiter = supervisor(state, Settings())
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True
    ) as deployment:
        with pytest.raises(SetupError, match="Ray ended: see "):
            waiter._wait_for(deployment)
        assert deployment.poll() is None
        deployment.kill()


def test_a_start_under_way_refuses_another(tmp_path: Path) -> None:
    state = StateDir.at(tmp_path)
    state.create()
    with state.lock(), pytest.raises(SetupError, match="another start is under way"):
        supervisor(state, Settings()).start()


@contextlib.contextmanager
def child(*arguments: str) -> Iterator[ProcessId]:
    """A process that leads a session of its own and waits."""
    command = [sys.executable, "-c", "import time; time.sleep(600)", *arguments]
    with subprocess.Popen(command, start_new_session=True) as process:
        found = ProcessId.of(process.pid)
        assert found is not None
        # As it is no child of who ends it in life, somebody must collect it.
        reaper = threading.Thread(target=process.wait)
        reaper.start()
        yield found
        process.kill()
        reaper.join()


def test_shutting_down_ends_what_the_file_names(tmp_path: Path) -> None:
    state = StateDir.at(tmp_path)
    state.create()
    with child() as leader:
        gone = ProcessId(2**22 + 1, 0.0)
        state.save(RunState(starter=gone, url="", sessions={"ray": leader}))
        assert shut_down(state)
        assert session_members(leader) == []
    assert state.load() is None
    assert not shut_down(state)


def test_shutting_down_waits_for_a_starter_that_is_up(tmp_path: Path) -> None:
    state = StateDir.at(tmp_path)
    state.create()
    with child() as starter:
        state.save(RunState(starter=starter, url=""))
        assert shut_down(state)
        assert not starter.is_alive()


def test_a_cluster_is_found_when_the_file_is_lost(tmp_path: Path) -> None:
    state = StateDir.at(tmp_path)
    state.create()
    folder = ray_dir(state.path)
    (folder / "session_1" / "logs").mkdir(parents=True)
    (folder / "session_latest").symlink_to(folder / "session_1")
    (folder / "session_1" / "logs" / "raylet.out").write_text("hello")
    with child(f"--temp-dir={folder}") as head, child(str(folder)) as bystander:
        assert shut_down(state)
        assert not head.is_alive()
        assert bystander.is_alive()
    assert not folder.exists()
    assert (state.logs / "ray" / "raylet.out").read_text() == "hello"


def test_shutting_down_nothing_changes_nothing(tmp_path: Path) -> None:
    state = StateDir.at(tmp_path / "none")
    assert not shut_down(state)
    assert not state.path.exists()
