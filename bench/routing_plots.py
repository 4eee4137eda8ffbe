"""Plots of the routing benchmark as SVG files: the same figures give the same bytes.

Needs matplotlib (`pip install -c constraints.txt -e '.[bench]'`), which is imported only here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from bench.routing_cells import QUANTILES
from bench.routing_checks import Basis, compared
from bench.routing_results import Mean, Measured
from bench.routing_rows import (
    CLEAN,
    GOALS,
    OURS,
    ROUTER_CASES,
    STANDARD,
    label_of,
    parse_row,
)

UNJUDGED = Basis({})  # plots show figures alone
CURVE_ROW = "conversation:4"
SHOWN = ("dynamo:2/32/32", "llmd:3/2/2", "sglang:64/1.5/0.3", "dynamo:1/1/0", "round_robin")
HIGHEST = 2.5  # times ours that is shown
ROUTER_PEERS = ("dynamo:2/32/32", "dynamo:1/8/32", "llmd:3/2/2")
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "cachelane",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.grid": True,
}


def write_plots(folder: Path, measured: Measured) -> list[Path]:
    """Those for which there are figures."""
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        drawn = {
            "routing_rows.svg": _rows(measured),
            "routing_routers.svg": _routers(measured),
            "routing_ttft.svg": _curve(measured),
        }
        paths = []
        for name, figure in drawn.items():
            if figure is not None:
                paths.append(folder / name)
                figure.savefig(paths[-1], bbox_inches="tight", metadata={"Date": None})
    return paths


def _rows(measured: Measured) -> Figure | None:
    """Mean TTFT of peers over ours, by row. Bars that leave the plot say how high they are."""
    rows = [found for row in GOALS if (found := compared(measured, row, UNJUDGED)) is not None]
    if not rows:
        return None
    lines: dict[str, list[Mean | None]] = {"best tuned peer of the row": [r.theirs for r in rows]}
    for router in SHOWN:
        lines[label_of(router)] = [measured.of(CLEAN, found.row, router) for found in rows]
    figure = Figure(figsize=(10, 4))
    axes = figure.subplots()
    width = 0.85 / len(lines)
    for number, (name, means) in enumerate(lines.items()):
        at = [i + width * (number + 0.5 - len(lines) / 2) for i in range(len(rows))]
        ratios = [
            mean.ttft / found.ours.ttft if mean else 0.0
            for mean, found in zip(means, rows, strict=True)
        ]
        axes.bar(at, ratios, width, label=name, color=_color(number + 1))
        for x, ratio in zip(at, ratios, strict=True):
            if ratio > HIGHEST:
                axes.text(x, HIGHEST, f"{ratio:,.1f}", rotation=90, va="top", ha="center", size=7)
    axes.axhline(1.0, color=_color(0), label="ours")
    axes.set_ylim(0.0, HIGHEST)
    labels = [f"{parse_row(r.row).label}\n{r.ours.ttft:.0f} ms" for r in rows]
    axes.set_xticks(range(len(rows)), labels)
    axes.set_ylabel("mean TTFT over ours")
    axes.grid(visible=False, axis="x")
    figure.legend(fontsize=8, ncols=7, loc="upper center")
    return figure


def _routers(measured: Measured) -> Figure | None:
    rows = [row for row in ROUTER_CASES[0].limits if len(_by_routers(measured, row, OURS)) > 1]
    if not rows:
        return None
    figure = Figure(figsize=(10, 2.8))
    panels = figure.subplots(1, len(rows), squeeze=False)[0]
    for axes, row in zip(panels, rows, strict=True):
        for number, router in enumerate((OURS, *ROUTER_PEERS)):
            points = _by_routers(measured, row, router)
            axes.plot(*_columns(points), "o-", label=label_of(router), color=_color(number))
        axes.set_title(parse_row(row).label)
        axes.set_xscale("log", base=2)
        axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
        axes.set_xlabel("routers")
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel("mean TTFT, ms")
    panels[-1].legend(fontsize=7)
    figure.tight_layout()
    return figure


def _by_routers(measured: Measured, row: str, router: str) -> list[tuple[float, float]]:
    """(number of routers, mean TTFT)."""
    found: list[tuple[float, Mean | None]] = [(1, measured.of(CLEAN, row, router))]
    for case in ROUTER_CASES:
        num = float(case.changes(0.0)["num_routers"])
        found.append((num, measured.of(case.name, row, router)))
    return [(num, mean.ttft) for num, mean in found if mean is not None]


def _curve(measured: Measured) -> Figure | None:
    """Share of requests by TTFT on one row."""
    row = compared(measured, CURVE_ROW, UNJUDGED)
    if row is None:
        return None
    lines = {"ours": row.ours, f"{label_of(row.peer)} (best tuned)": row.theirs}
    for router in ("dynamo:1/1/0", "round_robin"):
        mean = measured.of(CLEAN, CURVE_ROW, router)
        if mean is not None:
            lines[STANDARD[router]] = mean
    figure = Figure(figsize=(6, 3.4))
    axes = figure.subplots()
    for number, (name, mean) in enumerate(lines.items()):
        axes.plot(mean.quantiles, QUANTILES, label=name, color=_color(number))
    axes.set_xscale("log")
    axes.set_xlabel(f"TTFT, ms ({parse_row(CURVE_ROW).label})")
    axes.set_ylabel("share of requests")
    axes.legend(fontsize=8)
    return figure


def _columns(points: Sequence[tuple[float, float]]) -> list[Any]:
    return [list(column) for column in zip(*points, strict=True)] or [[], []]


def _color(number: int) -> str:
    return ("#c0392b", *(f"C{i}" for i in (0, 1, 2, 4, 7, 8)))[number]
