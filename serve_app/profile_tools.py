"""The profilers that can look into a running replica: what each can do, found and told apart.

Knows commands and their answers; runs nothing. What shapes it:
- py-spy samples any Python process from outside, this one too, if the system lets it.
- Nsight Systems cannot attach: only a process that was started through `nsys launch` can be traced,
  and then as often as one likes, with `nsys start` and `nsys stop` of its session. (A session of
  `nsys profile --start-later`, as Ray's own plugin makes it, ends with its first stop.)
- torch.profiler works from inside the process that runs the kernels, so not for an engine whose
  workers are processes of their own; nor beside nsys, since the GPU tells only one profiler.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from controllers.errors import InvalidRequest, SetupError
from infra.settings_sections import ExecutorSettings

Tool = Literal["nsys", "torch", "py-spy"]
# Seconds of one capture: what still gives a file that can be opened.
TOOL_TO_MAX_S: dict[Tool, float] = {"nsys": 120.0, "torch": 30.0, "py-spy": 600.0}
TOOL_TO_SUFFIX: dict[Tool, str] = {"nsys": ".nsys-rep", "torch": ".json.gz", "py-spy": ".svg"}
MIN_S = 1.0
SAMPLES_PER_S = 100

# The shell that Ray starts workers through replaces $$ by its process id, which becomes nsys's.
NSYS_LAUNCH = "nsys launch --trace=cuda,nvtx --wait=all --session-new=cachelane-$$"

PY_SPY_HELP = "install it in the replica's environment: pip install py-spy"
NSYS_HELP = (
    "install Nsight Systems on that node, set executor.profiling to nsys and restart the replicas; "
    "it cannot attach to a process that was not started under it"
)
TORCH_HELP = "it needs an engine that runs torch in the replica's own process"
CUPTI_HELP = "this replica runs under nsys, and the GPU tells only one profiler: use --tool nsys"
ITERATIONS_HELP = (
    "start the replicas with TLLM_PROFILE_START_STOP=FIRST-LAST and TLLM_TORCH_PROFILE_TRACE=FILE, "
    "by which TensorRT-LLM traces iterations itself"
)
CHILDREN_HELP = f"the engine runs in child processes: use --tool nsys, or {ITERATIONS_HELP}"
ELSEWHERE_HELP = f"the engine runs in Ray workers of its own: {ITERATIONS_HELP}"

# Where the engine of a replica computes: in its process, in processes it started, in Ray actors.
Place = Literal["here", "children", "elsewhere"]
ORCHESTRATOR_TO_PLACE: dict[str, Place] = {
    "process": "here",
    "mpi": "children",
    "ray": "elsewhere",
}


class Surroundings(NamedTuple):
    """What a replica has. `py_spy` and `nsys` are paths, `session` is that of the nsys it runs
    under; "" for none. `has_torch`: its process has imported it."""

    py_spy: str = ""
    nsys: str = ""
    session: str = ""
    has_torch: bool = False
    place: Place = "here"


def place_of(executor: ExecutorSettings) -> Place:
    if executor.kind != "trtllm":
        return "here"
    return ORCHESTRATOR_TO_PLACE[executor.trtllm.chosen_orchestrator]


def launch_environment(profiling: str, python: str) -> dict[str, str]:
    """Of a replica's actor, for `executor.profiling`; `python` is the path of its interpreter."""
    return {"py_executable": f"{NSYS_LAUNCH} {python}"} if profiling == "nsys" else {}


def choose_tool(wanted: str, around: Surroundings) -> Tool:
    """`wanted` is a tool or "auto": the first that sees the GPU. Raises SetupError naming how to
    get it, InvalidRequest for no tool at all."""
    problems = problems_of(around)
    if wanted == "auto":
        usable = [tool for tool, problem in problems.items() if not problem]
        if usable:
            return usable[0]
        raise SetupError("no profiler can look into this replica: " + "; ".join(problems.values()))
    for tool, problem in problems.items():
        if tool == wanted:
            if problem:
                raise SetupError(problem)
            return tool
    raise InvalidRequest("tool", f"{wanted!r} is none of auto, {', '.join(problems)}")


def problems_of(around: Surroundings) -> dict[Tool, str]:
    """Why each tool cannot be used, "" if it can; the one that sees most is first."""
    return {
        "nsys": _nsys_problem(around),
        "torch": _torch_problem(around),
        "py-spy": "" if around.py_spy else f"py-spy is not there: {PY_SPY_HELP}",
    }


def _nsys_problem(around: Surroundings) -> str:
    if not around.nsys:
        return f"nsys is not there: {NSYS_HELP}"
    if around.place == "elsewhere":
        return f"nsys: {ELSEWHERE_HELP}"
    return "" if around.session else f"this replica was not started under nsys: {NSYS_HELP}"


def _torch_problem(around: Surroundings) -> str:
    if around.place != "here":
        return f"torch: {CHILDREN_HELP if around.place == 'children' else ELSEWHERE_HELP}"
    if not around.has_torch:
        return f"torch is not loaded: {TORCH_HELP}"
    return f"torch: {CUPTI_HELP}" if around.session else ""


def check_seconds(seconds: float, tool: Tool) -> None:
    """Raises InvalidRequest."""
    most = TOOL_TO_MAX_S[tool]
    if not MIN_S <= seconds <= most:
        text = f"{seconds:g} is not between {MIN_S:g} and {most:g}, the range of {tool}"
        raise InvalidRequest("seconds", text)


def find_program(name: str) -> str:
    """Beside this interpreter, or on PATH; "" if nowhere."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name) or ""


def nsys_session(ancestors: Iterable[Sequence[str]]) -> str:
    """The session that a process runs under, "" if none: its name is in the command line of the
    nearest ancestor that is `nsys launch`."""
    for command in ancestors:
        if command and Path(command[0]).name == "nsys" and "launch" in command:
            for argument in command:
                option, _, name = argument.partition("=")
                if option == "--session-new":
                    return name
    return ""


def py_spy_command(around: Surroundings, pid: int, seconds: float, file: Path) -> list[str]:
    """Duration in whole seconds, as py-spy takes it."""
    return [
        around.py_spy,
        "record",
        f"--pid={pid}",
        f"--duration={max(1, round(seconds))}",
        f"--rate={SAMPLES_PER_S}",
        "--threads",
        "--format=flamegraph",
        f"--output={file}",
        *(["--subprocesses"] if around.place == "children" else []),
    ]


def nsys_commands(program: str, session: str, file: Path) -> tuple[list[str], list[str]]:
    """Start and stop. Samples of the processor are left out: they made a file of 2 GB in 2 s, and
    py-spy has them by name."""
    start = [
        program,
        "start",
        f"--session={session}",
        "--sample=none",
        "--cpuctxsw=none",
        f"--output={file}",
        "--force-overwrite=true",
    ]
    return start, [program, "stop", f"--session={session}"]
