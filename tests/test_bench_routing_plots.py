"""Plots of the routing benchmark: there when there are figures, and the same for the same ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.routing_cells import QUANTILES, Cell
from bench.routing_results import Measured
from bench.routing_rows import OURS
from tests.bench_routing_rig import figures

plots = pytest.importorskip("bench.routing_plots", exc_type=ImportError)
ROW = "conversation:4"


def measured() -> Measured:
    curve = {"ttft_quantiles_ms": [100.0 * share for share in QUANTILES]}
    cells = {}
    for router, ttft in ((OURS, 215.0), ("dynamo:2/32/32", 250.0), ("round_robin", 400.0)):
        cells[Cell("clean", ROW, router, 0).key] = {**figures(ttft), **curve}
        cells[Cell("routers-2", ROW, router, 0).key] = {**figures(1.1 * ttft), **curve}
    return Measured(cells, 1)


def test_the_same_figures_give_the_same_files(tmp_path: Path) -> None:
    paths = plots.write_plots(tmp_path / "one", measured())
    assert [path.name for path in paths] == [
        "routing_rows.svg", "routing_routers.svg", "routing_ttft.svg",
    ]  # fmt: skip
    again = plots.write_plots(tmp_path / "two", measured())
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]
    assert "best tuned peer of the row" in paths[0].read_text("utf-8")


def test_without_figures_there_are_no_plots(tmp_path: Path) -> None:
    assert plots.write_plots(tmp_path, Measured({}, 1)) == []
    assert list(tmp_path.iterdir()) == []
