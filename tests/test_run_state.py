"""The state file: written whole, believed only after a look at the processes."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from controllers.errors import SetupError
from infra.process_session import ProcessId
from infra.run_state import RunState, StateDir

GONE = ProcessId(2**22 + 1, 0.0)  # above the largest process id of Linux


def own() -> ProcessId:
    found = ProcessId.of(os.getpid())
    assert found is not None
    return found


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    state = StateDir.at(tmp_path / "state")
    state.create()
    return state


def test_what_is_saved_is_loaded(state: StateDir) -> None:
    run = RunState(
        starter=own(),
        url="http://127.0.0.1:8000",
        is_ready=True,
        bootstrap_servers="127.0.0.1:9092",
        ray_address="127.0.0.1:6379",
        sessions={"ray": GONE},
    )
    state.save(run)
    assert state.load() == run
    assert stat.S_IMODE(state.state_file.stat().st_mode) == 0o600
    assert sorted(path.name for path in state.path.iterdir()) == ["logs", "models", "state.json"]


def test_forgetting_twice(state: StateDir) -> None:
    state.save(RunState(starter=own(), url=""))
    state.forget()
    state.forget()
    assert state.load() is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"starter": 1}'])
def test_a_damaged_file_counts_as_none(state: StateDir, content: str) -> None:
    state.state_file.write_text(content)
    assert state.load() is None


def test_no_folder_and_a_file_in_its_place_hold_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert StateDir.at(tmp_path / "file").load() is None
    assert StateDir.at(tmp_path / "none").load() is None


def test_a_file_that_cannot_be_read_is_an_error(state: StateDir) -> None:
    state.state_file.mkdir()
    with pytest.raises(SetupError, match=f"cannot read {state.state_file}: Is a directory"):
        state.load()


def test_running_by_its_starter_or_by_a_session() -> None:
    assert RunState(starter=own(), url="").is_running()
    # Its own session: the one of the tests may be led by a process that ended, or cannot be seen.
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True) as child:
        leader = ProcessId.of(child.pid)
        assert leader is not None
        assert RunState(starter=GONE, url="", sessions={"ray": leader}).is_running()
    assert not RunState(starter=GONE, url="", sessions={"ray": leader}).is_running()
    assert not RunState(starter=GONE, url="", sessions={"ray": GONE}).is_running()


def test_a_cluster_is_its_head() -> None:
    assert RunState(starter=GONE, url="", sessions={"ray": own()}).has_cluster()
    assert not RunState(starter=own(), url="", sessions={"ray": GONE}).has_cluster()
    assert not RunState(starter=own(), url="", sessions={"deploy": own()}).has_cluster()


def test_the_path_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert StateDir.at(Path("here")).path == tmp_path / "here"


def test_a_second_start_is_refused(state: StateDir) -> None:
    message = f"another start is under way for {state.path}"
    with state.lock(), pytest.raises(SetupError, match=message), state.lock():
        pass
    with state.lock():
        pass


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="choose another with --state-dir"):
        StateDir.at(tmp_path / "file" / "state").create()
