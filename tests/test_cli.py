"""The command line: usage, exit codes, one-line errors, what is printed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from controllers.errors import SettingsError, SetupError
from infra.ports import free_ports
from infra.process_session import ProcessId
from infra.run_state import RunState, StateDir
from infra.settings import POLICY_SECTIONS, Settings, to_settings
from serve_app import cli_fleet
from serve_app.cli import main
from serve_app.cli_app import app_for
from serve_app.cli_config import serve_config
from serve_app.cli_lifecycle import banner, describe, override
from serve_app.scaling_config import autoscaling_config, executor_policies

app = app_for([])

FLEET: dict[str, Any] = {
    "model": "SmolLM2-135M-Instruct",
    "block_size": 32,
    "ready": True,
    "ingress": {"id": "ab12cd34", "records_applied": 1204, "lag_ms": 8.4, "num_errors": 0},
    "workers": [
        {
            "worker": "k2x9-0",
            "replica": "k2x9",
            "dp_rank": 0,
            "epoch": 1795989358995,
            "seq": 14,
            "stale": True,
            "stale_reason": "silent",
            "heard_ms_ago": 4100.0,
            "num_blocks": {"gpu": 512, "host": 64},
            "resident_blocks": {"gpu": 40, "host": 2},
            "resident_blocks_by_retention_priority": {"0": 3, "100": 12, "60": 27, "80": 0},
            "num_active": 0,
            "num_queued": 0,
            "used_blocks": {"gpu": 0},
            "hit_tokens": 0,
            "prompt_tokens": 0,
            "hit_rate": None,
        },
        {
            "worker": "a7f3-0",
            "replica": "a7f3",
            "dp_rank": 0,
            "epoch": 1795989358990,
            "seq": 210,
            "stale": False,
            "stale_reason": None,
            "heard_ms_ago": 120.0,
            "num_blocks": {"gpu": 512},
            "resident_blocks": {"gpu": 77},
            "resident_blocks_by_retention_priority": {"100": 12, "60": 65},
            "num_active": 3,
            "num_queued": 1,
            "used_blocks": {"gpu": 31},
            "hit_tokens": 640,
            "prompt_tokens": 1000,
            "hit_rate": 0.64,
        },
    ],
    "routing": {"decisions": {"overlap": 31, "cold": 4, "stale": 0}},
}

TABLE = """\
worker  state          active  queued  blocks: used / resident / all  resident by retention priority  hit rate
a7f3-0  ok                  3       1  gpu 31 / 77 / 512              100: 12  60: 65                     64 %
k2x9-0  stale: silent       0       0  gpu 0 / 40 / 512               100: 12  60: 27  0: 3
                                       host 0 / 2 / 64
model SmolLM2-135M-Instruct · 32 tokens a block · ready · ingress ab12cd34: 1204 records applied · 8 ms behind · decisions overlap 31, cold 4
"""  # noqa: E501


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["cachelane", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert isinstance(caught.value.code, int)
    return caught.value.code


def rendered(fleet: dict[str, Any]) -> str:
    console = Console(width=160, no_color=True, force_terminal=False)
    with console.capture() as capture:
        console.print(cli_fleet.render(fleet))
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


@pytest.mark.parametrize(
    "command",
    [
        "up",
        "down",
        "status",
        "fleet",
        "events",
        "chat",
        "doctor",
        "profile",
        "config check",
        "config serve",
    ],
)
def test_every_command_explains_itself(command: str) -> None:
    code, output = run(*command.split(), "--help")
    assert code == 0
    assert f"{command} [OPTIONS]" in output


def test_wrong_usage_is_2(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_main(monkeypatch, "up", "--replicas", "two") == 2
    assert run_main(monkeypatch, "nothing") == 2


def test_a_good_file_is_ok(tmp_path: Path) -> None:
    file = tmp_path / "cachelane.yaml"
    file.write_text("executor: {num_replicas: 3}\n")
    assert run("config", "check", str(file)) == (0, "OK\n")


def test_a_bad_file_is_one_line_on_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cachelane.yaml"
    file.write_text("http: {prt: 1}\n")
    assert run_main(monkeypatch, "config", "check", str(file)) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("cachelane: http.prt: unknown key; did you mean 'port'?")
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["fleet", "events", "chat"])
def test_commands_for_a_running_service_say_how_to_start_one(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_main(monkeypatch, command, "--state-dir", str(tmp_path)) == 1
    assert capsys.readouterr().err == (
        f"cachelane: nothing is running for {tmp_path}: start it with `cachelane up` or `make up`\n"
    )


def test_status_and_down_of_nothing(tmp_path: Path) -> None:
    folder = str(tmp_path / "none")
    assert run("status", "--json", "--state-dir", folder) == (
        1,
        '{\n  "status": "not running"\n}\n',
    )
    assert run("down", "--state-dir", folder) == (0, "nothing was running\n")


def test_status_of_a_start_that_crashed(tmp_path: Path) -> None:
    state = StateDir.at(tmp_path)
    state.create()
    gone = ProcessId(2**22 + 1, 0.0)
    state.save(RunState(starter=gone, url="http://127.0.0.1:1", sessions={"ray": gone}))
    assert describe(state) == {"status": "not running"}
    assert run("down", "--state-dir", str(tmp_path)) == (0, "nothing was running\n")
    assert state.load() is None


def test_status_says_that_kafka_does_not_answer(tmp_path: Path) -> None:
    state, (url_port, kafka_port) = StateDir.at(tmp_path), free_ports(2)
    state.create()
    state.settings_file.write_text("")
    me = ProcessId.of(os.getpid())
    assert me is not None
    kafka = f"127.0.0.1:{kafka_port}"
    run_state = RunState(
        starter=me, url=f"http://127.0.0.1:{url_port}", is_ready=True, bootstrap_servers=kafka
    )
    state.save(run_state)
    found = describe(state)
    assert found["kafka"] == kafka
    assert found["warning"].startswith(f"Kafka does not answer (no Kafka at {kafka}: ")
    assert "Kafka does not answer" in run("status", "--state-dir", str(tmp_path))[1]
    state.save(msgspec.structs.replace(run_state, is_ready=False))
    assert "warning" not in describe(state)  # it starts: there may be no Kafka yet


def test_the_fleet_as_a_table() -> None:
    assert rendered(FLEET) == TABLE


def test_a_fleet_without_workers() -> None:
    text = rendered({"model": "m", "block_size": 32, "ready": False, "workers": []})
    assert text.splitlines()[-1] == (
        "model m · 32 tokens a block · not ready · ingress : 0 records applied"
    )


def test_options_override_the_file() -> None:
    settings = to_settings({"executor": {"num_replicas": 5}, "http": {"port": 9000}})
    found = override(settings, {("executor", "num_replicas"): 3, ("http", "port"): None})
    assert (found.executor.num_replicas, found.http.port) == (3, 9000)


def test_a_wrong_option_names_its_setting() -> None:
    with pytest.raises(SettingsError, match=r"executor\.kind"):
        override(Settings(), {("executor", "kind"): "vllm"})


def test_the_serve_configuration() -> None:
    settings = to_settings(
        {"executor": {"num_replicas": 4, "num_gpus": 1}, "routing": {"theta": 2.0}}
    )
    found = yaml.safe_load(yaml.safe_dump(serve_config(settings)))
    (application,) = found["applications"]
    ingress, executor = application["deployments"]
    assert application["import_path"] == "serve_app.app:build"
    assert sorted(ingress["user_config"]) == sorted([*POLICY_SECTIONS, "http"])
    assert executor == {
        "name": "Executor",
        "num_replicas": 4,
        "user_config": executor_policies(settings),
        "graceful_shutdown_timeout_s": 3600.0,
        "ray_actor_options": {"num_cpus": 0.0, "num_gpus": 1.0},
    }
    arguments = application["args"]["settings"]
    # Another number would restart them all.
    assert "num_replicas" not in arguments["executor"]
    assert "num_ingress" not in arguments["http"]
    arguments["executor"]["num_replicas"] = 4
    assert to_settings({**arguments, **ingress["user_config"]}) == settings


def test_the_serve_configuration_with_autoscaling() -> None:
    settings = to_settings({"autoscaling": {"enabled": True, "drain_timeout_s": 60.0}})
    (application,) = yaml.safe_load(yaml.safe_dump(serve_config(settings)))["applications"]
    ingress, executor = application["deployments"]
    assert "num_replicas" not in executor
    assert executor["autoscaling_config"] == autoscaling_config(settings)
    times = [part["graceful_shutdown_timeout_s"] for part in (ingress, executor)]
    assert times == [60.0, 60.0]


def test_what_up_prints_works_in_a_shell_and_in_python() -> None:
    text = banner("http://127.0.0.1:8000", "m", 21.4, Path(".cachelane").resolve())
    snippet = text[text.index("from openai") : text.index("\nSee also")]
    compile(snippet, "snippet", "exec")
    (curl,) = [line for line in text.splitlines() if line.startswith("curl ")]
    assert curl == (
        "curl -s http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' "
        '-d \'{"model": "m", "messages": [{"role": "user", "content": "What is the capital of '
        'France?"}], "temperature": 0, "max_tokens": 64}\''
    )


def test_up_says_where_grpc_is_if_it_is_on() -> None:
    folder = Path(".cachelane").resolve()
    assert "gRPC" not in banner("http://127.0.0.1:8000", "m", 1, folder)
    lines = banner("http://127.0.0.1:8000", "m", 1, folder, "127.0.0.1:8001").splitlines()
    assert lines[1:3] == [
        "Cachelane serves m at http://127.0.0.1:8000 (ready in 1 s)",
        "gRPC: 127.0.0.1:8001 (cachelane.v1.Cachelane; health and reflection are on)",
    ]


def test_up_on_what_runs_but_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = StateDir.at(tmp_path)
    state.create()
    head = ProcessId.of(os.getpid())
    assert head is not None
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    running = RunState(starter=head, url=url, is_ready=True, sessions={"ray": head})
    state.save(running)
    assert run_main(monkeypatch, "up", "--state-dir", str(tmp_path)) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"cachelane: it runs at {url} but is not ready (")
    assert err.endswith("wait, or stop it with `cachelane down`\n")
    assert state.load() == running


@pytest.mark.parametrize(
    ("program", "path", "folder", "line"),
    [
        ("bin/cachelane", "/nowhere", ".cachelane", "bin/cachelane fleet, "),
        ("bin/cachelane", "bin", ".cachelane", "cachelane fleet, "),
        ("serve_app/cli.py", "/nowhere", ".cachelane", "cachelane fleet, "),
        ("bin/cachelane", "bin", "a b", "cachelane fleet --state-dir '{}/a b', "),
    ],
)
def test_what_up_advises_can_be_typed(
    program: str,
    path: str,
    folder: str,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cachelane").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / path))
    monkeypatch.setattr(sys, "argv", [program])
    text = banner("http://127.0.0.1:8000", "m", 21.4, tmp_path / folder)
    assert text.splitlines()[-1].startswith(f"See also: {line.format(tmp_path)}")


def test_up_with_a_missing_settings_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "state"
    code = run_main(monkeypatch, "up", "--config", "no.yaml", "--state-dir", str(folder))
    assert code == 1
    assert capsys.readouterr().err.startswith("cachelane: cannot read settings file no.yaml")
    assert not folder.exists()


def test_running_asks_the_processes(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="nothing is running"):
        cli_fleet.service_url(None, tmp_path)
    assert cli_fleet.service_url("http://x:1/", tmp_path) == "http://x:1"


@pytest.mark.parametrize("url", ["", "x", "127.0.0.1:8000", "ftp://x"])
def test_what_is_no_url_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=f"--url is {url!r}: expected http://host:port"):
        cli_fleet.service_url(url, tmp_path)
