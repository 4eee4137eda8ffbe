"""`cachelane up`, `down` and `status`."""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from controllers.errors import SettingsError, SetupError
from infra.kafka_answers import kafka_problem
from infra.process_session import ProcessId
from infra.revive import revive_broker
from infra.run_state import RunState, StateDir
from infra.service_url import not_ready_reason
from infra.settings import Settings, load_settings, to_settings, to_values
from infra.shutdown import shut_down
from infra.supervisor import Parts, Supervisor
from serve_app.cli_common import DEFAULT_STATE_DIR, JsonOption, StateDirOption, console, print_json
from serve_app.client import first_model
from serve_app.model_files import check_model, fetch_model
from serve_app.progress import StartProgress

WATCH_S = 0.5
PROGRAM = "cachelane"
QUESTION = "What is the capital of France?"


def up(
    config: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    replicas: Annotated[int | None, typer.Option(help="Executor replicas.")] = None,
    ingress: Annotated[int | None, typer.Option(help="Ingress replicas.")] = None,
    executor: Annotated[str | None, typer.Option(help="local, scripted or trtllm.")] = None,
    model: Annotated[str | None, typer.Option(help="GGUF file; default: fetched once.")] = None,
    kafka: Annotated[str | None, typer.Option(help="host:port of a Kafka of yours.")] = None,
    http_port: Annotated[int | None, typer.Option(help="Port of the service.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return when it is ready.")] = False,
    state_dir: StateDirOption = DEFAULT_STATE_DIR,
) -> None:
    """Start Kafka, Ray and the service; Ctrl-C stops them."""
    settings = override(
        load_settings(config),
        {
            ("executor", "num_replicas"): replicas,
            ("http", "num_ingress"): ingress,
            ("executor", "kind"): executor,
            ("model", "path"): model,
            ("kafka", "bootstrap_servers"): kafka,
            ("http", "port"): http_port,
        },
    )
    state = StateDir.at(state_dir)
    run = state.load()
    if run is not None and run.is_ready and run.has_cluster():
        _check_on(state, run)
        return
    # A closed terminal and `kill` are to stop what was started, as Ctrl-C does.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    run = _start(state, settings)
    if not detach:
        _stay(state, run)


def _check_on(state: StateDir, run: RunState) -> None:
    """What runs already: alive, with its broker, and ready. Raises SetupError if it is not."""
    if revive_broker(state, run):
        typer.echo(f"Kafka had ended: started again at {run.bootstrap_servers}")
    reason = not_ready_reason(run.url)
    if reason is not None:
        raise SetupError(
            f"it runs at {run.url} but is not ready ({reason}): wait, or stop it with "
            "`cachelane down`"
        )
    typer.echo(f"Cachelane is already running: {run.url} (stop it with `cachelane down`)")


def override(settings: Settings, changes: Mapping[tuple[str, str], Any]) -> Settings:
    """Settings with the values that are not None put in. Raises SettingsError."""
    values = to_values(settings)
    for (section, key), value in changes.items():
        if value is not None:
            values[section][key] = value
    return to_settings(values)


def _start(state: StateDir, settings: Settings) -> RunState:
    started_s = time.monotonic()
    check_model(settings)
    parts = Parts(
        fetch_model=lambda say: fetch_model(settings, state.models, say),
        deploy_command=[sys.executable, "-m", "serve_app.deploy"],
    )
    with StartProgress(console()) as progress:
        run = Supervisor(state, settings, parts, progress).start()
    elapsed_s = time.monotonic() - started_s
    typer.echo(banner(run.url, first_model(run.url), elapsed_s, state.path, run.grpc))
    return run


def _stay(state: StateDir, run: RunState) -> None:
    """Until Ctrl-C, or until the cluster ends by itself."""
    typer.echo("Ctrl-C stops it.")
    try:
        while run.sessions["ray"].is_alive():
            time.sleep(WATCH_S)
    except KeyboardInterrupt:
        typer.echo("\nstopping ...")
        return
    finally:
        shut_down(state)
    raise SetupError(f"Ray ended: see {state.logs / 'ray'}")


def banner(url: str, model: str, elapsed_s: float, state_dir: Path, grpc: str = "") -> str:
    """What to do now; each part works as printed."""
    about = "cachelane.v1.Cachelane; health and reflection are on"
    grpc_line = f"\ngRPC: {grpc} ({about})" if grpc else ""
    return f"""
Cachelane serves {model} at {url} (ready in {elapsed_s:.0f} s){grpc_line}

curl -s {url}/v1/chat/completions -H 'Content-Type: application/json' \
-d '{{"model": "{model}", "messages": [{{"role": "user", "content": "{QUESTION}"}}], \
"temperature": 0, "max_tokens": 64}}'

from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="none")
messages = [{{"role": "user", "content": "{QUESTION}"}}]
answer = client.chat.completions.create(
    model="{model}", messages=messages, temperature=0, max_tokens=64
)
print(answer.choices[0].message.content, answer.usage)

See also: {", ".join(_commands(state_dir, "fleet", "events --follow", "chat", "down"))}
"""


def _commands(state_dir: Path, *names: str) -> list[str]:
    """As they can be typed here: the program may not be on PATH, the folder not the default."""
    program = sys.argv[0] if Path(sys.argv[0]).name == PROGRAM else PROGRAM
    if shutil.which(PROGRAM) == str(Path(program).absolute()):
        program = PROGRAM
    is_default = state_dir == DEFAULT_STATE_DIR.resolve()
    option = "" if is_default else f" --state-dir {shlex.quote(str(state_dir))}"
    return [f"{shlex.quote(program)} {name}{option}" for name in names]


def down(state_dir: StateDirOption = DEFAULT_STATE_DIR) -> None:
    """Stop everything that `up` started."""
    typer.echo("stopped" if shut_down(StateDir.at(state_dir)) else "nothing was running")


def status(state_dir: StateDirOption = DEFAULT_STATE_DIR, as_json: JsonOption = False) -> None:
    """Say what runs; exit code 1 if requests cannot be served."""
    state = StateDir.at(state_dir)
    found = describe(state)
    if as_json:
        print_json(found)
    else:
        table = Table.grid(padding=(0, 2))
        for name, value in found.items():
            table.add_row(name, Text(str(value), overflow="fold"))
        console().print(table)
    raise typer.Exit(0 if found["status"] == "ready" else 1)


def describe(state: StateDir) -> dict[str, Any]:
    """`warning`: requests can be served, but something is broken."""
    run = state.load()
    if run is None or not run.is_running():
        return {"status": "not running"}
    reason, warning = not_ready_reason(run.url), _warning(state, run)
    return {
        "status": "ready" if reason is None else ("not ready" if run.is_ready else "starting"),
        **({} if reason is None else {"reason": reason}),
        **({"warning": warning} if warning else {}),
        "url": run.url,
        **({"grpc": run.grpc} if run.grpc else {}),
        "kafka": run.bootstrap_servers,
        "ray": run.ray_address,
        "up": _pid(run.starter),
        **{name: _pid(leader) for name, leader in run.sessions.items() if leader.is_alive()},
    }


def _warning(state: StateDir, run: RunState) -> str:
    """While it starts there may be no Kafka yet."""
    if not run.bootstrap_servers or not run.is_ready:
        return ""
    try:
        configured = load_settings(state.settings_file, env={}).kafka
    except SettingsError as error:
        return str(error)
    settings = msgspec.structs.replace(configured, bootstrap_servers=run.bootstrap_servers)
    problem = kafka_problem(settings)
    if not problem:
        return ""
    return (
        f"Kafka does not answer ({problem}): requests are placed without knowing what caches hold; "
        "`cachelane up` starts an embedded Kafka again"
    )


def _pid(process: ProcessId) -> str:
    return f"pid {process.pid}" if process.is_alive() else "detached"
