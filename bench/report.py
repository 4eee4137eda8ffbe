"""What every benchmark does with its figures: note the machine, write a JSON, print a table."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

DIRECTORY = Path(".cachelane/bench")
PACKAGES = ("cachelane", "msgspec", "numpy", "ray", "xxhash")


@dataclass(frozen=True)
class Row:
    """One figure of ours, the same of a peer if there is one, and what it should be."""

    name: str
    unit: str
    ours: float
    peer: float | None = None
    target: float | None = None
    is_less_better: bool = False

    @property
    def ratio(self) -> float | None:
        """Above 1: we are better than the peer."""
        if self.peer is None or not self.ours or not self.peer:
            return None
        return self.peer / self.ours if self.is_less_better else self.ours / self.peer

    @property
    def is_met(self) -> bool | None:
        """None without a target."""
        if self.target is None:
            return None
        return self.ours <= self.target if self.is_less_better else self.ours >= self.target


def machine() -> dict[str, Any]:
    """Where and when the figures were taken."""
    return {
        "taken_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "num_cpus": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "command": " ".join([Path(sys.executable).name, *sys.argv]),
    }


def write_json(name: str, figures: dict[str, Any], path: Path | None = None) -> Path:
    """Writes machine and figures; returns where. Default: .cachelane/bench/NAME.json."""
    path = path or DIRECTORY / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), **figures}, indent=2) + "\n")
    return path


def print_rows(title: str, rows: Sequence[Row], peer: str | None = None) -> None:
    """One line per figure; `peer` names whom `Row.peer` is about. Ratio > 1: we are better."""
    from rich.console import Console  # a bare machine can note figures without it
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for column in ("ours", peer or "peer", "ratio", "target", "unit"):
        if peer is not None or column not in ("peer", "ratio"):
            table.add_column(column, justify="right")
    for row in rows:
        compared = [_number(row.peer), _number(row.ratio)] if peer is not None else []
        table.add_row(row.name, _number(row.ours), *compared, _target(row), row.unit)
    Console().print(table)


def _target(row: Row) -> str:
    if row.target is None:
        return ""
    sign = "<=" if row.is_less_better else ">="
    return f"{sign} {_number(row.target)} {'met' if row.is_met else '[bold red]missed[/]'}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
