"""`cachelane simulate`: a trace through a fleet of pretended engines under the real decisions."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from controllers.autoscaling_settings import AutoscalingSettings
from controllers.errors import SettingsError
from controllers.fair_queue import Bounds
from controllers.simulation.fleet import Fleet
from controllers.simulation.ingresses import OWN_ROUTER
from controllers.simulation.result import Report
from controllers.simulation.settings import FleetSettings
from controllers.simulation.timing import DYNAMO_MOCKER, parse_curve
from controllers.simulation.trace import Trace, build
from infra.settings import Settings, load_settings
from serve_app.cli_common import console
from serve_app.simulate_options import (
    MAX_WORKERS,
    OPTION_OF,
    first_rows,
    parse_by_worker,
    parse_duration,
    parse_outages,
    read_curve,
    read_trace,
)
from serve_app.simulate_report import table_of, write_json

ROUTER_HELP = (
    "cachelane, or to compare: dynamo, dynamo_tuned, llmd, sglang, trtllm, trtllm_old, mooncake, "
    "lmetric, least_queued, least_requests, round_robin; other weights as dynamo:1/8/32."
)


def simulate(
    trace: Annotated[Path, typer.Argument(help="Mooncake JSON lines, plain or gzip.")],
    router: Annotated[str, typer.Option(help=ROUTER_HELP)] = "cachelane",
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_WORKERS, help="Engines, always so many. [default: 8, or autoscaling]"
        ),
    ] = None,
    blocks: Annotated[int, typer.Option(min=1, help="GPU blocks of each.")] = 65_536,
    host_blocks: Annotated[int, typer.Option(min=0, help="Host blocks of each.")] = 0,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens; divides 512.")] = 32,
    speedup: Annotated[float, typer.Option(help="Arrivals so many times as fast.")] = 1.0,
    routers: Annotated[int, typer.Option(min=1, help="Requests go to them in turn.")] = 1,
    policy: Annotated[
        Path | None,
        typer.Option(
            help="Settings file: routing, retention, tiers, tenants, admission, autoscaling apply."
        ),
    ] = None,
    booking_lag: Annotated[
        str, typer.Option(help="Of what routers tell each other, as 20ms.")
    ] = "20ms",
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
    start_time: Annotated[
        str, typer.Option(help="Of a worker that autoscaling asks for, as 60s or 2m.")
    ] = "60s",
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
        num_workers=workers or FleetSettings().num_workers,
        num_blocks=blocks,
        num_host_blocks=host_blocks,
        speedup=speedup,
        jitter=jitter,
        seed=seed,
        num_routers=routers,
        max_batched_tokens=max_batched_tokens,
        max_sequences=max_sequences,
        booking_lag_s=parse_duration(booking_lag, "--booking-lag"),
        event_lag_s=parse_duration(event_lag, "--event-lag"),
        event_loss=event_loss,
        load_interval_s=(policies or Settings()).events.load_interval_s,
        slowness=parse_by_worker(slow_worker or [], "--slow-worker"),
        blocks_of=_counts(parse_by_worker(worker_blocks or [], "--worker-blocks")),
        outages=parse_outages(outage or [], "--outage"),
        start_s=parse_duration(start_time, "--start-time"),
        curve=DYNAMO_MOCKER if curve is None else parse_curve(curve),
    )
    if load_records is not None:
        fitted = read_curve(load_records, settings.reference_blocks, "--load-records")
        settings = msgspec.structs.replace(settings, curve=fitted)
    if policies is not None:
        settings = _with(settings, policies, router, workers)
    if json_file is not None and not json_file.parent.is_dir():
        raise SettingsError(f"--json: there is no folder {json_file.parent}")
    settings.check(OPTION_OF)
    with _without_gc():
        fleet_trace = build(first_rows(read_trace(trace), limit), block_size)
        report = _run(Fleet(fleet_trace, settings, router), fleet_trace)
    console().print(table_of(report, trace.name, router, settings))
    if json_file is not None:
        given = {
            "block_size": block_size,
            "limit": limit,
            "policy": None if policy is None else policy.name,
            "load_records": None if load_records is None else load_records.name,
        }
        write_json(json_file, trace.name, router, settings, given, report)


def _with(
    settings: FleetSettings, policies: Settings, router: str, num_workers: int | None
) -> FleetSettings:
    """What the file says. Other routers than ours have no admission."""
    executor = policies.executor
    return msgspec.structs.replace(
        settings,
        routing=policies.routing,
        retention=policies.retention,
        tiers=policies.tiers,
        tenants={name: tenant.limits for name, tenant in policies.tenants.items()},
        admission=policies.admission if router == OWN_ROUTER else None,
        gate_bounds=Bounds(executor.max_waiting_requests, executor.max_waiting_tokens),
        max_kept_share=executor.max_kept_share,
        autoscaling=_scales(policies.autoscaling, num_workers),
    )


def _scales(section: AutoscalingSettings, num_workers: int | None) -> AutoscalingSettings | None:
    return section if section.enabled and num_workers is None else None


def _run(fleet: Fleet, trace: Trace) -> Report:
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    errors = Console(stderr=True)
    with Progress(
        *columns, console=errors, transient=True, disable=not errors.is_terminal
    ) as progress:
        task = progress.add_task("", total=len(trace.requests))
        return fleet.run(lambda num_done: progress.update(task, completed=num_done)).report


@contextmanager
def _without_gc() -> Iterator[None]:
    """A run makes no cycles, and looking for them is an eighth of its time; what is left is not
    looked at again at the end of the process, which takes a third of a second."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _counts(values: dict[int, float]) -> dict[int, int]:
    for worker, value in values.items():
        if not value.is_integer():
            raise SettingsError(f"--worker-blocks: {value} blocks of worker {worker}")
    return {worker: int(value) for worker, value in values.items()}
