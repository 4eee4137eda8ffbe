"""`cachelane doctor`: checks of this machine, the bus and the running fleet, with their fixes."""

from __future__ import annotations

import platform
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from packaging.requirements import Requirement
from rich.table import Table
from rich.text import Text

from controllers.errors import BusError, SettingsError
from infra import preflight
from infra.doctor import fleet, gpu, limits, observe, topics, variables, versions
from infra.doctor.finding import Finding, is_passed
from infra.doctor.gpu_probe import look_at_gpus
from infra.doctor.gpu_report import GpuReport
from infra.doctor.run import Check, run_checks
from infra.kafka_address import parse_addresses
from infra.ray_env import ray_environment
from infra.run_state import StateDir
from infra.settings import Settings, load_settings, own_variables
from infra.settings_sections import KafkaSettings
from serve_app.cli_common import (
    DEFAULT_STATE_DIR,
    JsonOption,
    StateDirOption,
    console,
    print_json,
)
from serve_app.executor_resources import num_gpus_of
from serve_app.model_files import check_model_file

COLOURS = {"ok": "green", "info": "dim", "warning": "yellow", "error": "bold red"}
GPU_S, BUS_S, FLEET_S = 13.0, 8.0, 12.0
MAX_LISTEN_S = 4.0


def doctor(
    config: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    kafka: Annotated[str | None, typer.Option(help="host:port of a Kafka of yours.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail on warnings too.")] = False,
    state_dir: StateDirOption = DEFAULT_STATE_DIR,
    as_json: JsonOption = False,
) -> None:
    """Say what this machine lacks for a fleet, and how to mend it; exit code 1 on errors."""
    _check_address(kafka)
    findings = diagnose(config, kafka, StateDir.at(state_dir))
    if as_json:
        print_json(msgspec.to_builtins(findings))
    else:
        console().print(render(findings))
    raise typer.Exit(0 if is_passed(findings, strict) else 1)


def _check_address(kafka: str | None) -> None:
    """A wrong address is wrong usage, not a fault of the machine."""
    try:
        parse_addresses(kafka or "any:1")
    except BusError as error:
        raise typer.BadParameter(str(error), param_hint="--kafka") from error


def diagnose(config: Path | None, kafka: str | None, state: StateDir) -> list[Finding]:
    """Every check, side by side."""
    patient, problems = _patient(config, kafka, state)
    return [*problems, *run_checks(checks_of(patient))]


@dataclass(frozen=True, slots=True)
class Patient:
    """What is looked at: settings, the state folder, and whether a fleet runs for it."""

    settings: Settings
    state: StateDir
    is_running: bool


def _patient(
    config: Path | None, kafka: str | None, state: StateDir
) -> tuple[Patient, list[Finding]]:
    """Settings from `config`; without it, those of the running fleet or the defaults."""
    run = state.load()
    is_running = run is not None and run.is_ready and run.has_cluster()
    try:
        path = config or (state.settings_file if is_running else None)
        settings, problems = load_settings(path), list[Finding]()
    except SettingsError as error:
        fix = "Correct it; `cachelane config check` names one fault after another."
        settings, problems = Settings(), [Finding("settings.file", "error", str(error), fix)]
    if kafka is not None:
        own = msgspec.structs.replace(settings.kafka, bootstrap_servers=kafka)
        settings = msgspec.structs.replace(settings, kafka=own)
    return Patient(settings, state, is_running), problems


def checks_of(patient: Patient) -> list[Check]:
    checks = [
        Check("python", _check_python),
        Check("gpu", lambda: _check_gpus(patient.settings), GPU_S),
        Check("env", lambda: _check_variables(patient)),
        Check("machine", lambda: _check_machine(patient)),
        Check("settings", lambda: _check_settings(patient.settings)),
        Check("kafka.reachable", lambda: _check_bus(patient.settings.kafka), BUS_S),
    ]
    if patient.is_running:
        checks.append(Check("fleet.workers", lambda: _check_fleet(patient.settings), FLEET_S))
    return checks


def _check_python() -> list[Finding]:
    requirements = observe.own_requirements()
    found = observe.installed_versions(Requirement(text).name for text in requirements)
    return [
        versions.check_python(platform.python_version()),
        limits.from_preflight("python.path", "its path has no space", preflight.check_interpreter),
        versions.check_requirements(requirements, found),
    ]


def _check_gpus(settings: Settings) -> list[Finding]:
    """GPUs, and the packages that must fit their driver."""
    report = look_at_gpus()
    return [
        *gpu.check_gpus(report, wanted_of(settings)),
        *versions.check_engine_packages(
            observe.installed_versions(versions.ENGINE_PACKAGES),
            platform.python_version(),
            _driver(report),
            is_wanted=settings.executor.kind == "trtllm",
            has_host_tier=settings.executor.trtllm.host_cache_bytes > 0,
        ),
    ]


def wanted_of(settings: Settings) -> gpu.Wanted:
    """What the replicas compute on, whoever reserves it."""
    executor = settings.executor
    if executor.kind != "trtllm":
        return gpu.Wanted(num_gpus_of(executor), executor.num_replicas)
    trtllm = executor.trtllm
    return gpu.Wanted(trtllm.num_gpus, executor.num_replicas, trtllm.kv_cache_dtype)


def _driver(report: GpuReport) -> str | None:
    return report.gpus[0].driver if report.gpus else report.kernel_driver or None


def _check_variables(patient: Patient) -> list[Finding]:
    found = own_variables()
    return [
        *variables.check_gpu_variables(found, wanted_of(patient.settings).num_gpus > 0),
        *variables.check_ray_variables(found, ray_environment(patient.state.path)),
        variables.check_ray_auth(found, observe.has_ray_token_file()),
        variables.check_proxy(found),
    ]


def _check_machine(patient: Patient) -> list[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return [
        limits.check_open_files(soft, hard),
        limits.from_preflight(
            "machine.shared_memory", "enough shared memory", preflight.check_shared_memory
        ),
        limits.from_preflight(
            "machine.disk",
            "enough disk",
            lambda: preflight.check_disk(patient.state.path),
        ),
        *_check_ports(patient),
    ]


def _check_ports(patient: Patient) -> list[Finding]:
    http, grpc = patient.settings.http, patient.settings.grpc
    if patient.is_running:
        return [Finding("machine.ports", "ok", "the ports serve this fleet")]
    found = [
        limits.from_preflight(
            "machine.http_port",
            f"HTTP port {http.port} of {http.host} is free",
            lambda: preflight.check_port(http.host, http.port),
        )
    ]
    if grpc.enabled:
        found.append(
            limits.from_preflight(
                "machine.grpc_port",
                f"gRPC port {grpc.port} of {grpc.host} is free",
                lambda: preflight.check_port(
                    grpc.host, grpc.port, "gRPC", "CACHELANE_GRPC__PORT", "grpc.port"
                ),
            )
        )
    return found


def _check_settings(settings: Settings) -> list[Finding]:
    name = settings.model.path or "the default model, fetched at the first start"
    if settings.model.path is None and settings.executor.kind == "scripted":
        name = "none needed"
    return [
        limits.from_preflight("model.file", f"model: {name}", lambda: check_model_file(settings)),
        *limits.check_executor(settings.executor),
        *_check_profiling(settings.executor.profiling),
    ]


def _check_profiling(profiling: str) -> list[Finding]:
    if profiling == "off":
        return []
    found = f"{profiling} is there, for executor.profiling"
    return [
        limits.from_preflight(
            "settings.profiling", found, lambda: preflight.check_profiling(profiling)
        )
    ]


def _check_bus(settings: KafkaSettings) -> list[Finding]:
    if settings.bootstrap_servers is None:
        text = "the embedded Kafka is used; it starts with the fleet"
        return [Finding("kafka.reachable", "info", text)]
    try:
        facts = observe.look_at_bus(settings)
    except BusError as error:
        fix = "Start it, correct kafka.bootstrap_servers, or leave that out for the embedded one."
        return [Finding("kafka.reachable", "error", str(error), fix)]
    answers = Finding("kafka.reachable", "ok", f"Kafka answers at {settings.bootstrap_servers}")
    return [answers, *topics.check_bus(facts, settings)]


def _check_fleet(settings: Settings) -> list[Finding]:
    listen_s = min(MAX_LISTEN_S, 2 * settings.events.load_interval_s + 0.5)
    heard = observe.hear_workers(settings.kafka, listen_s)
    return fleet.check_workers(fleet.workers_of(heard), settings.executor.block_size)


def render(findings: list[Finding]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("level")
    table.add_column("check", no_wrap=True)
    table.add_column("found, and what to do", overflow="fold")
    for finding in findings:
        text = Text(finding.found)
        if finding.fix:
            text.append(f"\n{finding.fix}", "bold" if finding.level == "error" else "")
        table.add_row(Text(finding.level, COLOURS[finding.level]), finding.id, text)
    return table
