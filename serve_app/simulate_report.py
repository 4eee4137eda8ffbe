"""Figures of `cachelane simulate`: a table for people, a JSON file for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from controllers.errors import SettingsError
from controllers.simulation.result import PartReport, Report, ScalingReport, Spread
from controllers.simulation.settings import FleetSettings


def table_of(report: Report, trace: str, router: str, settings: FleetSettings) -> Table:
    title = f"{trace}: {router}, {_size(settings)} workers"
    table = Table(title=title, title_justify="left")
    for name in ("", "mean", "p50", "p99"):
        table.add_column(name, justify="right" if name else "left")
    table.add_row("time to first token, ms", *_cells(report.ttft_ms))
    _add_parts(table, "tier", report.tiers)
    _add_parts(table, "tenant", report.tenants)
    table.add_row("end to end, ms", *_cells(report.e2e_ms))
    table.add_section()
    asked, hit = report.num_asked_blocks, report.num_hit_blocks
    table.add_row("prompt tokens reused", f"{report.reuse:.1%}")
    table.add_row("blocks found of asked", f"{hit / asked:.1%}" if asked else "-")
    table.add_row("busiest worker over mean", f"{report.busiest_over_mean:.2f}")
    table.add_row("requests", f"{report.num_requests:,}")
    if report.num_refused:
        table.add_row("requests refused", f"{report.num_refused:,}")
    if report.num_pieces:
        table.add_row("pieces of long prompts", f"{report.num_pieces:,}")
    table.add_row("simulated time, s", f"{report.duration_s:,.1f}")
    if report.scaling is not None:
        _add_scaling(table, report.scaling)
    if report.num_rerun:
        table.add_row("requests run again", f"{report.num_rerun:,}")
    if report.num_lost_records:
        table.add_row("log records lost", f"{report.num_lost_records:,}")
        table.add_row("times a worker was stale", f"{report.num_stale:,}")
    return table


def _add_parts(table: Table, kind: str, parts: Mapping[str, PartReport]) -> None:
    """Times to first token of each."""
    for name, part in parts.items():
        refused = f", {part.num_refused:,} of {part.num_requests:,} refused"
        label = f"  {kind} {name}{refused if part.num_refused else ''}"
        table.add_row(label, *_cells(part.ttft_ms))


def _add_scaling(table: Table, scaling: ScalingReport) -> None:
    table.add_row("first tokens within their SLO", f"{scaling.ttft_met:.1%}")
    table.add_row("worker hours", f"{scaling.worker_s / 3600:,.2f}")
    table.add_row("workers, mean", f"{scaling.mean_workers:,.2f}")
    table.add_row("workers, most", f"{scaling.most_workers:,}")
    table.add_row("times up and down", f"{scaling.num_ups} and {scaling.num_downs}")


def _cells(spread: Spread) -> list[str]:
    return [f"{value:,.1f}" for value in (spread.mean, spread.p50, spread.p99)]


def write_json(
    path: Path,
    trace: str,
    router: str,
    settings: FleetSettings,
    given: Mapping[str, int | str | None],
    report: Report,
) -> None:
    """The report, what the fleet was, and what else was `given`. Raises SettingsError."""
    chosen = {name: value for name, value in given.items() if value is not None}
    numbers = {**chosen, **_numbers(settings), **_parts_of(settings)}
    figures: dict[str, Any] = msgspec.to_builtins(report)
    values = {"trace": trace, "router": router, "settings": numbers, **figures}
    try:
        path.write_text(json.dumps(values, indent=2) + "\n", "utf-8")
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {error}") from error


def _size(settings: FleetSettings) -> str:
    section = settings.autoscaling
    if section is None:
        return str(settings.num_workers)
    return f"{section.min_replicas} to {section.max_replicas}"


def _parts_of(settings: FleetSettings) -> dict[str, Any]:
    """Those that are no numbers. An outage without `back_s` is for ever."""
    curve = settings.curve
    seen = {"max_tokens": curve.max_tokens, "max_share": curve.max_share}
    parts = {
        "curve": {
            "prefill": curve.prefill,
            "decode": curve.decode,
            **(seen if curve.max_tokens < inf else {}),  # of a fitted one
        },
        "slowness": settings.slowness,
        "blocks_of": settings.blocks_of,
        "outages": [
            {name: value for name, value in msgspec.structs.asdict(outage).items() if value < inf}
            for outage in settings.outages
        ],
    }
    return {name: value for name, value in parts.items() if value}


def _numbers(settings: FleetSettings) -> dict[str, int | float]:
    """Those that apply."""
    section = settings.autoscaling
    fields = msgspec.structs.asdict(settings)
    numbers = {name: value for name, value in fields.items() if isinstance(value, int | float)}
    if section is None:
        del numbers["start_s"]
    else:
        del numbers["num_workers"]
        numbers |= {
            "min_replicas": section.min_replicas,
            "max_replicas": section.max_replicas,
        }
    return numbers
