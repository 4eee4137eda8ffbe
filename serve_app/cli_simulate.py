"""`cachelane simulate`: a trace through a fleet of pretended engines under the real decisions."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from controllers.errors import SettingsError
from controllers.simulation.fleet import Fleet
from controllers.simulation.result import Report, Spread
from controllers.simulation.settings import FleetSettings
from controllers.simulation.timing import DYNAMO_MOCKER, parse_curve
from controllers.simulation.trace import Trace, build
from infra.settings import Settings, load_settings
from serve_app.cli_common import console
from serve_app.simulate_options import (
    parse_by_worker,
    parse_duration,
    parse_outages,
    read_curve,
    read_trace,
)

ROUTER_HELP = (
    "cachelane, or to compare: dynamo, dynamo_tuned, llmd, sglang, trtllm, trtllm_old, mooncake, "
    "lmetric, least_queued, least_requests, round_robin; other weights as dynamo:1/8/32."
)


def simulate(
    trace: Annotated[Path, typer.Argument(help="Mooncake JSON lines, plain or gzip.")],
    router: Annotated[str, typer.Option(help=ROUTER_HELP)] = "cachelane",
    workers: Annotated[int, typer.Option(min=1, help="Engines.")] = 8,
    blocks: Annotated[int, typer.Option(min=1, help="GPU blocks of each.")] = 65_536,
    host_blocks: Annotated[int, typer.Option(min=0, help="Host blocks of each.")] = 0,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens; divides 512.")] = 32,
    speedup: Annotated[float, typer.Option(help="Arrivals so many times as fast.")] = 1.0,
    routers: Annotated[int, typer.Option(min=1, help="Requests go to them in turn.")] = 1,
    policy: Annotated[
        Path | None, typer.Option(help="Settings file: its routing and retention apply.")
    ] = None,
    event_lag: Annotated[str, typer.Option(help="Of KV events, as 50ms or 1s.")] = "0s",
    event_loss: Annotated[float, typer.Option(help="Share of log records lost.")] = 0.0,
    slow_worker: Annotated[
        list[str] | None, typer.Option(help="0=3: worker 0 takes 3 times as long.")
    ] = None,
    worker_blocks: Annotated[
        list[str] | None, typer.Option(help="0-3=8192: GPU blocks of these workers.")
    ] = None,
    outage: Annotated[
        list[str] | None, typer.Option(help="3=90s: dies then; 3=90s-120s: comes back empty.")
    ] = None,
    curve: Annotated[
        str | None, typer.Option(help="Timing a,b,c,d,e,f in ms; default: Dynamo's mocker.")
    ] = None,
    load_records: Annotated[
        Path | None, typer.Option(help="kv-events records to fit the timing to.")
    ] = None,
    max_batched_tokens: Annotated[int, typer.Option(min=1, help="Of an iteration.")] = 8192,
    max_sequences: Annotated[int, typer.Option(min=1, help="Of an engine.")] = 256,
    jitter: Annotated[float, typer.Option(help="Of arrival gaps, so that seeds differ.")] = 0.01,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first requests.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same figures.")] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file.")
    ] = None,
) -> None:
    """Run a trace through a simulated fleet; print times, reuse and balance."""
    policies = None if policy is None else load_settings(policy, env={})
    settings = FleetSettings(
        num_workers=workers,
        num_blocks=blocks,
        num_host_blocks=host_blocks,
        speedup=speedup,
        jitter=jitter,
        seed=seed,
        num_routers=routers,
        max_batched_tokens=max_batched_tokens,
        max_sequences=max_sequences,
        event_lag_s=parse_duration(event_lag, "--event-lag"),
        event_loss=event_loss,
        load_interval_s=(policies or Settings()).events.load_interval_s,
        slowness=parse_by_worker(slow_worker or [], "--slow-worker"),
        blocks_of=_counts(parse_by_worker(worker_blocks or [], "--worker-blocks")),
        outages=parse_outages(outage or [], "--outage"),
        curve=DYNAMO_MOCKER if curve is None else parse_curve(curve),
    )
    if load_records is not None:
        fitted = read_curve(load_records, blocks)
        settings = msgspec.structs.replace(settings, curve=fitted)
    if policies is not None:
        settings = msgspec.structs.replace(
            settings, routing=policies.routing, retention=policies.retention
        )
    if json_file is not None and not json_file.parent.is_dir():
        raise SettingsError(f"--json: there is no folder {json_file.parent}")
    rows = read_trace(trace)[:limit]
    fleet_trace = build(rows, block_size)
    report = _run(Fleet(fleet_trace, settings, router), fleet_trace)
    console().print(_table(report, f"{trace.name}: {router}, {workers} workers"))
    if json_file is not None:
        _write(json_file, trace.name, router, settings, report)


def _run(fleet: Fleet, trace: Trace) -> Report:
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    errors = Console(stderr=True)
    with Progress(
        *columns, console=errors, transient=True, disable=not errors.is_terminal
    ) as progress:
        task = progress.add_task("", total=len(trace.requests))
        gc.disable()  # a run makes no cycles, and looking for them is an eighth of its time
        try:
            return fleet.run(lambda num_done: progress.update(task, completed=num_done)).report
        finally:
            gc.enable()


def _table(report: Report, title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("", "mean", "p50", "p99"):
        table.add_column(name, justify="right" if name else "left")
    table.add_row("time to first token, ms", *_cells(report.ttft_ms))
    table.add_row("end to end, ms", *_cells(report.e2e_ms))
    table.add_section()
    asked, hit = report.num_asked_blocks, report.num_hit_blocks
    table.add_row("prompt tokens reused", f"{report.reuse:.1%}")
    table.add_row("blocks found of asked", f"{hit / asked:.1%}" if asked else "-")
    table.add_row("busiest worker over mean", f"{report.busiest_over_mean:.2f}")
    table.add_row("requests", f"{report.num_requests:,}")
    table.add_row("simulated time, s", f"{report.duration_s:,.1f}")
    if report.num_rerun:
        table.add_row("requests run again", f"{report.num_rerun:,}")
    if report.num_lost_records:
        table.add_row("log records lost", f"{report.num_lost_records:,}")
        table.add_row("times a worker was stale", f"{report.num_stale:,}")
    return table


def _cells(spread: Spread) -> list[str]:
    return [f"{value:,.1f}" for value in (spread.mean, spread.p50, spread.p99)]


def _counts(values: dict[int, float]) -> dict[int, int]:
    for worker, value in values.items():
        if not value.is_integer():
            raise SettingsError(f"--worker-blocks: {value} blocks of worker {worker}")
    return {worker: int(value) for worker, value in values.items()}


def _write(path: Path, trace: str, router: str, settings: FleetSettings, report: Report) -> None:
    """The report, and the settings that are numbers."""
    fields: dict[str, Any] = msgspec.structs.asdict(settings)
    numbers = {name: value for name, value in fields.items() if isinstance(value, int | float)}
    figures: dict[str, Any] = msgspec.to_builtins(report)
    values = {"trace": trace, "router": router, "settings": numbers, **figures}
    try:
        path.write_text(json.dumps(values, indent=2) + "\n", "utf-8")
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {error}") from error
