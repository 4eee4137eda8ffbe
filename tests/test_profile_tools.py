"""Which profiler can look into a replica, and how each is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from controllers.errors import InvalidRequest, SetupError
from infra.settings_sections import ExecutorSettings
from infra.settings_trtllm import TrtllmSettings
from serve_app.executor_resources import executor_resources
from serve_app.profile_tools import (
    NSYS_LAUNCH,
    Surroundings,
    check_seconds,
    choose_tool,
    launch_environment,
    nsys_commands,
    nsys_session,
    place_of,
    py_spy_command,
)

BARE = Surroundings(py_spy="/bin/py-spy")
TRACED = Surroundings(py_spy="/bin/py-spy", nsys="/bin/nsys", session="s", has_torch=True)


@pytest.mark.parametrize(
    ("around", "tool"),
    [
        (BARE, "py-spy"),
        (BARE._replace(has_torch=True), "torch"),
        (BARE._replace(nsys="/bin/nsys"), "py-spy"),
        (TRACED, "nsys"),
        (TRACED._replace(place="children"), "nsys"),
        (TRACED._replace(place="elsewhere"), "py-spy"),
        (TRACED._replace(place="children", session=""), "py-spy"),
    ],
)
def test_auto_takes_what_sees_most(around: Surroundings, tool: str) -> None:
    assert choose_tool("auto", around) == tool


@pytest.mark.parametrize(
    ("tool", "around", "message"),
    [
        ("py-spy", Surroundings(), "py-spy is not there: .* pip install py-spy"),
        ("nsys", BARE, "nsys is not there: install Nsight Systems"),
        ("nsys", BARE._replace(nsys="x"), "not started under nsys: .*executor.profiling to nsys"),
        ("nsys", TRACED._replace(place="elsewhere"), "TLLM_PROFILE_START_STOP"),
        ("torch", BARE, "torch is not loaded"),
        ("torch", TRACED, "the GPU tells only one profiler: use --tool nsys"),
        ("torch", TRACED._replace(place="children"), "use --tool nsys, or start the replicas with"),
        ("auto", Surroundings(), "no profiler .*nsys is not there.*torch is not.*py-spy is not"),
    ],
)
def test_a_tool_that_cannot_be_used_says_how_to_get_it(
    tool: str, around: Surroundings, message: str
) -> None:
    with pytest.raises(SetupError, match=message):
        choose_tool(tool, around)


def test_no_such_tool() -> None:
    with pytest.raises(InvalidRequest, match="tool: 'perf' is none of auto, nsys, torch, py-spy"):
        choose_tool("perf", BARE)


@pytest.mark.parametrize("seconds", [0.5, 31, float("nan")])
def test_seconds_out_of_the_tools_range(seconds: float) -> None:
    with pytest.raises(InvalidRequest, match="is not between 1 and 30, the range of torch"):
        check_seconds(seconds, "torch")
    check_seconds(30, "torch")


def test_the_session_of_the_nearest_nsys() -> None:
    """Command lines as they were on a real machine."""
    launch = ["nsys", *NSYS_LAUNCH.replace("$$", "677").split()[1:], "python", "worker.py"]
    launcher = ["/opt/nvidia/nsys-launcher", "/tmp/f727", "46"]
    raylet = ["/x/raylet", "--session-new=no"]
    assert nsys_session([launcher, launch, raylet]) == "cachelane-677"
    assert nsys_session([launcher, ["/opt/nvidia/nsys", *launch[1:]]]) == "cachelane-677"
    assert nsys_session([launcher, raylet, []]) == ""
    assert nsys_session([["nsys", "profile", "--session-new=once"]]) == ""


def test_commands() -> None:
    assert py_spy_command(BARE, 7, 2.4, Path("/f.svg")) == [
        "/bin/py-spy",
        "record",
        "--pid=7",
        "--duration=2",
        "--rate=100",
        "--threads",
        "--format=flamegraph",
        "--output=/f.svg",
    ]
    with_children = py_spy_command(BARE._replace(place="children"), 7, 2.4, Path("/f.svg"))
    assert with_children[-1] == "--subprocesses"
    start, stop = nsys_commands("nsys", "cachelane-7", Path("/f"))
    assert start[:3] == ["nsys", "start", "--session=cachelane-7"]
    assert {"--sample=none", "--output=/f"} <= set(start)
    assert stop == ["nsys", "stop", "--session=cachelane-7"]


def test_replicas_start_under_nsys_only_when_they_are_told_to() -> None:
    assert launch_environment("off", "/bin/python") == {}
    off = executor_resources(ExecutorSettings())["ray_actor_options"]
    assert off == {"num_cpus": 0.0, "num_gpus": 0.0}
    settings = ExecutorSettings(kind="trtllm", profiling="nsys")
    runtime_env = executor_resources(settings)["ray_actor_options"]["runtime_env"]
    assert runtime_env["py_executable"].startswith(f"{NSYS_LAUNCH} /")
    assert runtime_env["env_vars"] == {"TLLM_WORKER_USE_SINGLE_PROCESS": "1"}


def test_where_an_engine_computes() -> None:
    kinds = {
        "process": TrtllmSettings(),
        "mpi": TrtllmSettings(tensor_parallel_size=2, orchestrator="mpi"),
        "ray": TrtllmSettings(tensor_parallel_size=2, orchestrator="ray"),
    }
    assert {
        name: place_of(ExecutorSettings(kind="trtllm", trtllm=trtllm))
        for name, trtllm in kinds.items()
    } == {"process": "here", "mpi": "children", "ray": "elsewhere"}
    assert place_of(ExecutorSettings()) == "here"
