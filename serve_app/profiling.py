"""Captures in one replica: one at a time, into a file on the replica's node.

Owns the order's and the answer's form and the running of a capture. Knows nothing of Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from controllers.errors import CachelaneError, Overloaded, SetupError
from infra.settings import environment
from serve_app.profile_tools import (
    TOOL_TO_SUFFIX,
    Place,
    Surroundings,
    Tool,
    check_seconds,
    choose_tool,
    find_program,
    nsys_commands,
    nsys_session,
    py_spy_command,
)

FINISH_S = 60.0  # a profiler may take so long to write what it has
NSYS_FINISH_S = 300.0
PR_SET_PTRACER = 0x59616D61


class ProfileOrder(msgspec.Struct, frozen=True, kw_only=True):
    """`target`: a worker or a replica; `folder`: on the replica's node, made if it is missing."""

    target: str
    seconds: float
    tool: str
    folder: str


class ProfileAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Of one replica. Neither `path` nor `error`: the order was not for it. Without a name: of one
    that could not be asked."""

    replica: str = ""
    workers: list[str] = []
    node: str = ""
    tool: str = ""
    path: str = ""
    num_bytes: int = 0
    error: str = ""


class Profiler:
    """The captures of one replica, whose engine computes at `place`."""

    def __init__(self, replica: str, workers: Sequence[str], place: Place) -> None:
        self._nobody = ProfileAnswer(replica=replica, workers=list(workers))
        self._place = place
        self._busy = threading.Lock()

    async def answer(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """`values` of a ProfileOrder -> those of a ProfileAnswer, when the capture is written; at
        once if the order is for another replica."""
        order = msgspec.convert(dict(values), ProfileOrder)
        answer = self._nobody
        if order.target in {answer.replica, *answer.workers}:
            answer = await asyncio.to_thread(self._answer, order)
        return msgspec.structs.asdict(answer)

    def _answer(self, order: ProfileOrder) -> ProfileAnswer:
        here = msgspec.structs.replace(self._nobody, node=os.uname().nodename)
        try:
            tool, path = self._capture(order)
        except CachelaneError as error:
            return msgspec.structs.replace(here, error=str(error))
        size = path.stat().st_size
        return msgspec.structs.replace(here, tool=tool, path=str(path), num_bytes=size)

    def _capture(self, order: ProfileOrder) -> tuple[Tool, Path]:
        if not self._busy.acquire(blocking=False):
            raise Overloaded(f"a capture is already running in {self._nobody.replica}")
        try:
            around = look_around(self._place)
            tool = choose_tool(order.tool, around)
            check_seconds(order.seconds, tool)
            path = self._new_file(Path(order.folder), tool)
            return tool, run_tool(tool, around, order.seconds, path)
        finally:
            self._busy.release()

    def _new_file(self, folder: Path, tool: Tool) -> Path:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SetupError(f"cannot make {folder}: {error.strerror}") from error
        if not os.access(folder, os.W_OK):
            raise SetupError(f"cannot write to {folder}: choose another with --output")
        stamp = time.strftime("%Y%m%d-%H%M%S")
        return folder / f"{self._nobody.replica}-{stamp}-{tool}{TOOL_TO_SUFFIX[tool]}"


def look_around(place: Place) -> Surroundings:
    """Which profilers this process has."""
    return Surroundings(
        py_spy=find_program("py-spy"),
        nsys=find_program("nsys"),
        session=_session(),
        has_torch="torch" in sys.modules,
        place=place,
    )


def _session() -> str:
    commands = []
    for process in psutil.Process().parents():
        with contextlib.suppress(psutil.Error):
            commands.append(process.cmdline())
    return nsys_session(commands)


def run_tool(tool: Tool, around: Surroundings, seconds: float, path: Path) -> Path:
    """Blocks; the file that was written. Raises SetupError with what the tool said."""
    if tool == "torch":
        # Importing torch costs seconds and memory: only where the engine has done so itself.
        from serve_app import profile_torch

        profile_torch.capture(seconds, path)
    elif tool == "nsys":
        path = _run_nsys(around, seconds, path)
    else:
        _let_children_look()
        _run(py_spy_command(around, os.getpid(), seconds, path), seconds + FINISH_S)
    if not path.exists() or not path.stat().st_size:
        raise SetupError(f"{tool} wrote nothing to {path}")
    return path


def _run_nsys(around: Surroundings, seconds: float, path: Path) -> Path:
    start, stop = nsys_commands(around.nsys, around.session, path.with_suffix(""))
    _run(start, FINISH_S)
    try:
        time.sleep(seconds)
    finally:
        _run(stop, NSYS_FINISH_S)
    # Without its importer, as in some images, nsys leaves the raw form.
    raw = path.with_suffix(".qdstrm")
    return raw if raw.exists() and not path.exists() else path


def _let_children_look() -> None:
    """Under Yama's ptrace_scope 1, Ubuntu's default, a process must name who may trace it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, os.getpid(), 0, 0, 0)


def _run(command: list[str], timeout_s: float) -> str:
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"{name} did not end within {timeout_s:g} s") from error
    except OSError as error:
        raise SetupError(f"{name} cannot be started: {error.strerror}") from error
    if done.returncode != 0:
        said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise SetupError(f"{name} failed: {_explained(said[0] if said else 'it said nothing')}")
    return done.stdout


def _explained(said: str) -> str:
    if "permission" not in said.lower():
        return said
    return f"{said} (in a container, add the capability SYS_PTRACE)"
