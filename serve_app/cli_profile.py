"""`cachelane profile`: a capture in one replica, by a profiler that can look into it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from controllers.errors import CachelaneError, SetupError
from infra.ports import MAX_PORT, is_listening
from infra.run_state import StateDir
from infra.settings import environment, environment_of
from serve_app.cli_common import (
    DEFAULT_STATE_DIR,
    JsonOption,
    StateDirOption,
    print_json,
    running,
)
from serve_app.profile_tools import TOOL_TO_MAX_S
from serve_app.profiling import FINISH_S, NSYS_FINISH_S, ProfileAnswer, ProfileOrder

CONNECT_S = 30.0  # importing Ray and connecting
PROBE_TIMEOUT_S = 5.0
HOW_TO_OPEN = {
    "py-spy": "open it in a browser",
    "nsys": "open it with nsys-ui",
    "torch": "open it at https://ui.perfetto.dev",
}


class ToolChoice(str, Enum):
    AUTO = "auto"
    NSYS = "nsys"
    TORCH = "torch"
    PY_SPY = "py-spy"


def profile(
    replica: Annotated[str, typer.Argument(help="Worker or replica, as `cachelane fleet` says.")],
    seconds: Annotated[
        float, typer.Option(min=1, max=max(TOOL_TO_MAX_S.values()), help="Length of the capture.")
    ] = 10.0,
    tool: Annotated[
        ToolChoice, typer.Option(help="auto: the first that sees the GPU.")
    ] = ToolChoice.AUTO,
    output: Annotated[
        Path | None, typer.Option(help="Folder on the replica's node; default: profiles/ in state.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster of yours; default: the one of --state-dir.")
    ] = None,
    state_dir: StateDirOption = DEFAULT_STATE_DIR,
    as_json: JsonOption = False,
) -> None:
    """Capture what one replica does into a file: nsys, torch.profiler or py-spy."""
    folder = (output or StateDir.at(state_dir).path / "profiles").expanduser().absolute()
    order = ProfileOrder(target=replica, seconds=seconds, tool=tool.value, folder=str(folder))
    if address is None:
        run = running(state_dir)
        if not run.has_cluster():
            raise SetupError("Ray is not running: start everything with `cachelane up`")
        address, env = run.ray_address, environment_of(run.sessions["ray"].pid)
    else:
        check_address(address)
        env = environment()
    answer = find(ask(order, address, env), replica)
    if as_json:
        print_json(msgspec.to_builtins(answer))
    else:
        typer.echo(describe(answer, os.uname().nodename))


def check_address(address: str) -> None:
    """Ray itself would try for minutes, without a word. Raises SetupError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= MAX_PORT:
        raise SetupError(f"--address: {address!r} is not HOST:PORT")
    if not is_listening(int(port), host.strip("[]"), PROBE_TIMEOUT_S):
        raise SetupError(f"--address: nothing listens at {address}; give that of Ray's head")


def ask(order: ProfileOrder, address: str, env: Mapping[str, str]) -> list[ProfileAnswer]:
    """Answers of all replicas. Raises CachelaneError."""
    timeout_s = order.seconds + (FINISH_S if order.tool in {"py-spy", "torch"} else NSYS_FINISH_S)
    request = {
        "address": address,
        "order": msgspec.to_builtins(order),
        "timeout_s": timeout_s,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "serve_app.profile_client"],
            input=json.dumps(request) + "\n",
            env=dict(env),
            capture_output=True,
            text=True,
            timeout=timeout_s + CONNECT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"no answer from Ray at {address}") from error
    return _answers(done.stdout, done.stderr)


def _answers(said: str, errors: str) -> list[ProfileAnswer]:
    """Ray may print before our line, which is the last."""
    line = (said.splitlines() or [""])[-1]
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError:
        last = (errors.strip().splitlines() or ["it said nothing"])[-1]
        raise SetupError(f"asking the cluster failed: {last}") from None
    if "error" in found:
        raise SetupError(f"asking the cluster failed: {found['error']}")
    return [msgspec.convert(answer, ProfileAnswer) for answer in found["answers"]]


def find(answers: Sequence[ProfileAnswer], target: str) -> ProfileAnswer:
    """The one of the replica that was meant. Raises CachelaneError with what it said, or with the
    known workers."""
    done = next((answer for answer in answers if answer.path), None)
    if done is not None:
        return done
    for answer in answers:
        if answer.error:
            raise CachelaneError(answer.error)
    known = sorted(worker for answer in answers for worker in answer.workers)
    raise CachelaneError(f"no replica or worker {target!r}; known: {', '.join(known) or 'none'}")


def describe(answer: ProfileAnswer, here: str) -> str:
    where = "" if answer.node == here else f" on node {answer.node}"
    size = f"{answer.num_bytes / 1000:.0f} kB"
    return f"{answer.path}{where}\n{answer.tool}, {size}: {HOW_TO_OPEN[answer.tool]}"
