"""`cachelane fleet`: what one ingress knows of the workers, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from serve_app.cli_common import (
    DEFAULT_STATE_DIR,
    JsonOption,
    StateDirOption,
    UrlOption,
    console,
    print_json,
    service_url,
)
from serve_app.client import get_json


def fleet(
    url: UrlOption = None,
    state_dir: StateDirOption = DEFAULT_STATE_DIR,
    as_json: JsonOption = False,
) -> None:
    """Workers, their blocks by medium and by retention priority, and hit rates."""
    found = get_json(f"{service_url(url, state_dir)}/fleet")
    if as_json:
        print_json(found)
    else:
        console().print(render(found))


def render(fleet: Mapping[str, Any]) -> RenderableType:
    """`fleet` is the body of GET /fleet; fields that it lacks stay empty."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("worker", "state"):
        table.add_column(name, no_wrap=name == "worker")
    for name in ("active", "queued"):
        table.add_column(name, justify="right")
    table.add_column("blocks: used / resident / all")
    table.add_column("resident by retention priority")
    table.add_column("hit rate", justify="right")
    for worker in sorted(fleet.get("workers", ()), key=lambda worker: str(worker.get("worker"))):
        table.add_row(
            str(worker.get("worker", "")),
            _state(worker),
            str(worker.get("num_active", "")),
            str(worker.get("num_queued", "")),
            "\n".join(blocks_by_medium(worker)),
            by_priority(worker.get("resident_blocks_by_retention_priority") or {}),
            hit_rate(worker),
        )
    return Group(table, Text(summary(fleet), "dim"))


def _state(worker: Mapping[str, Any]) -> Text:
    if worker.get("stale"):
        return Text(f"stale: {worker.get('stale_reason') or 'no reason given'}", "yellow")
    return Text("ok", "green")


def blocks_by_medium(worker: Mapping[str, Any]) -> list[str]:
    """One line for each medium: in use by requests / resident / capacity."""
    capacity = worker.get("num_blocks") or {}
    used = worker.get("used_blocks") or {}
    resident = worker.get("resident_blocks") or {}
    return [
        f"{medium} {used.get(medium, 0)} / {resident.get(medium, 0)} / {capacity.get(medium, 0)}"
        for medium in dict.fromkeys([*capacity, *resident])
        if capacity.get(medium) or resident.get(medium)
    ]


def by_priority(classes: Mapping[str, int]) -> str:
    """Highest priority first, empty classes left out."""
    ordered = sorted(classes.items(), key=lambda item: -int(item[0]))
    return "  ".join(f"{priority}: {count}" for priority, count in ordered if count)


def hit_rate(worker: Mapping[str, Any]) -> str:
    rate = worker.get("hit_rate")
    return "" if rate is None else f"{100 * rate:.0f} %"


def summary(fleet: Mapping[str, Any]) -> str:
    """What is true of the whole: model, ingress, decisions so far."""
    ingress = fleet.get("ingress") or {}
    lag_ms = ingress.get("lag_ms")
    decisions = (fleet.get("routing") or {}).get("decisions") or {}
    parts = [
        f"model {fleet.get('model', '')}",
        f"{fleet.get('block_size', '?')} tokens a block",
        "ready" if fleet.get("ready") else "not ready",
        f"ingress {ingress.get('id', '')}: {ingress.get('records_applied', 0)} records applied",
        *([] if lag_ms is None else [f"{lag_ms:.0f} ms behind"]),
        *([f"{ingress['num_errors']} errors"] if ingress.get("num_errors") else []),
        *([_decisions(decisions)] if any(decisions.values()) else []),
    ]
    return " · ".join(parts)


def _decisions(decisions: Mapping[str, int]) -> str:
    return "decisions " + ", ".join(f"{why} {count}" for why, count in decisions.items() if count)
