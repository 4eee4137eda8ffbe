"""`cachelane doctor` as a program uses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from infra.doctor.finding import Finding
from infra.ports import free_ports
from infra.run_state import StateDir
from infra.settings import to_settings
from serve_app.cli_app import app_for
from serve_app.cli_doctor import Patient, checks_of, render, wanted_of

app = app_for([])


def doctor(state: Path, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    done = CliRunner().invoke(app, ["doctor", "--json", "--state-dir", str(state), *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.exit_code, {finding["id"]: finding for finding in json.loads(done.stdout)}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Settings that this machine can run."""
    file = tmp_path / "cachelane.yaml"
    file.write_text(f"executor: {{kind: scripted}}\nhttp: {{port: {free_ports(1)[0]}}}\n")
    return file


def test_a_machine_that_will_do(config: Path, tmp_path: Path) -> None:
    code, found = doctor(tmp_path, "--config", str(config))
    assert code == 0
    assert {finding["level"] for finding in found.values()} <= {"ok", "info", "warning"}
    assert {"python.packages", "ray.auth", "machine.http_port", "kafka.reachable"} <= set(found)
    assert found["kafka.reachable"]["found"] == (
        "the embedded Kafka is used; it starts with the fleet"
    )
    assert not (tmp_path / "logs").exists()


def test_a_kafka_that_is_not_there(config: Path, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    code, found = doctor(tmp_path, "--config", str(config), "--kafka", address)
    assert code == 1
    assert [f["id"] for f in found.values() if f["level"] == "error"] == ["kafka.reachable"]
    assert found["kafka.reachable"]["found"].startswith(f"no Kafka at {address}: ")
    assert found["kafka.reachable"]["fix"].startswith("Start it, ")


def test_warnings_fail_a_strict_build(tmp_path: Path) -> None:
    file = tmp_path / "cachelane.yaml"
    port = free_ports(1)[0]
    file.write_text(
        f"executor: {{kind: scripted, event_buffer_size: 100}}\nhttp: {{port: {port}}}\n"
    )
    arguments = ["--config", str(file)]
    code, found = doctor(tmp_path, *arguments)
    assert (code, found["settings.event_buffer"]["level"]) == (0, "warning")
    assert doctor(tmp_path, *arguments, "--strict")[0] == 1


def test_a_broken_settings_file_is_a_finding(tmp_path: Path) -> None:
    file = tmp_path / "cachelane.yaml"
    file.write_text("http: {prt: 1}\n")
    code, found = doctor(tmp_path, "--config", str(file))
    assert code == 1
    assert found["settings.file"]["found"].startswith("http.prt: unknown key")


def test_wrong_usage_is_2() -> None:
    for arguments in (["--nonsense"], ["--kafka", "nowhere"]):
        assert CliRunner().invoke(app, ["doctor", *arguments]).exit_code == 2


def test_what_settings_want_of_gpus() -> None:
    values = {"kind": "trtllm", "trtllm": {"tensor_parallel_size": 4, "kv_cache_dtype": "fp8"}}
    wanted = wanted_of(to_settings({"executor": values}))
    assert (wanted.num_gpus, wanted.num_replicas, wanted.kv_dtype) == (4, 2, "fp8")
    assert wanted_of(to_settings({})).num_gpus == 0.0


def test_a_missing_package_is_one_finding(tmp_path: Path) -> None:
    """The folder is looked at all the same."""
    file = tmp_path / "cachelane.yaml"
    file.write_text("executor: {kind: trtllm}")
    code, found = doctor(tmp_path, "--config", str(file))
    assert code == 1
    assert "TensorRT-LLM is not installed" in found["tensorrt_llm.version"]["found"]
    assert found["model.file"]["found"] == "model.path is not set"


def test_a_running_fleet_is_listened_to(tmp_path: Path) -> None:
    patient = Patient(to_settings({}), StateDir.at(tmp_path), is_running=False)
    running = Patient(patient.settings, patient.state, is_running=True)
    assert [check.id for check in checks_of(patient)] == [
        "python",
        "gpu",
        "env",
        "machine",
        "settings",
        "kafka.reachable",
    ]
    assert [check.id for check in checks_of(running)][-1] == "fleet.workers"


def test_the_table() -> None:
    findings = [Finding("a.b", "ok", "fine"), Finding("c", "error", "[broken]", "Mend it.")]
    console = Console(width=80, no_color=True, force_terminal=False)
    with console.capture() as capture:
        console.print(render(findings))
    lines = [line.rstrip() for line in capture.get().splitlines()]
    assert lines == [
        "level  check  found, and what to do",
        "ok     a.b    fine",
        "error  c      [broken]",
        "              Mend it.",
    ]
