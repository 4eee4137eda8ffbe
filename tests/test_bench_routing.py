"""Rows, cells and plans of the routing benchmark, and the file that keeps its figures."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench.routing_cells import NUM_SHORT, Cell, run_cell, short_prompts, with_system_prompt
from bench.routing_plan import (
    Found,
    case_cells,
    clean_cells,
    find_best,
    read_best,
    search_cells,
    write_best,
)
from bench.routing_results import Measured, Results
from bench.routing_rows import (
    CASES,
    FAMILIES,
    GRID,
    NAME_TO_CASE,
    NUM_BLOCKS,
    NUM_WORKERS,
    OURS,
    ROWS,
    STANDARD,
    Row,
    family_of,
    label_of,
    parse_row,
)
from controllers.errors import SettingsError
from controllers.simulation.peers import formula_of
from controllers.simulation.settings import FleetSettings
from controllers.simulation.trace import Row as TraceRow
from tests.bench_routing_rig import figures
from tests.simulation_rig import sessions


def write_trace(folder: Path) -> Path:
    with gzip.open(folder / "mooncake_synthetic.jsonl.gz", "wb") as lines:
        for row in sessions(20):
            lines.write(msgspec.json.encode(row) + b"\n")
    return folder


def test_rows_are_read_as_they_are_written() -> None:
    assert [parse_row(row.name) for row in ROWS] == list(ROWS)
    assert parse_row(" weka:2 ") == Row("weka", 2.0)
    assert (Row("weka", 2.0).label, Row("short", 600.0).label) == ("weka 2x", "short 600/s")


@pytest.mark.parametrize("text", ["weka", "weka:x", "other:1", ""])
def test_a_row_that_is_none_is_named(text: str) -> None:
    with pytest.raises(SettingsError, match=f"--rows: '{text}'"):
        parse_row(text)


def test_the_simulator_knows_every_setting_of_a_peer() -> None:
    for router in (*GRID, *STANDARD):
        formula_of(router)
        assert family_of(router) in FAMILIES
    assert len(set(GRID)) == len(GRID) == 80
    assert set(STANDARD) <= set(GRID)
    assert label_of("dynamo:2/16/64") == "Dynamo 2/16/64"
    assert label_of("dynamo:1/1/0") == "Dynamo default"


def test_every_case_is_a_fleet() -> None:
    for case in CASES:
        settings = FleetSettings(num_workers=NUM_WORKERS, num_blocks=NUM_BLOCKS)
        msgspec.structs.replace(settings, **case.changes(100.0)).check()
        assert all(parse_row(row).name == row for row in case.limits)
    assert NAME_TO_CASE["death"].changes(100.0)["outages"][0].at_s == 50.0


def test_short_prompts() -> None:
    rows = short_prompts(600.0, 20_000, seed=1)
    assert short_prompts(600.0, 20_000, seed=1) == rows != short_prompts(600.0, 20_000, seed=2)
    lengths = [row.input_length for row in rows]
    assert np.median(lengths) == pytest.approx(200, rel=0.02)
    assert rows[-1].timestamp == pytest.approx(20_000 / 0.6, rel=0.03)
    assert {row.output_length for row in rows} == {64}
    ids = [hash_id for row in rows for hash_id in row.hash_ids]
    assert len(set(ids)) == len(ids)
    assert all(len(row.hash_ids) == -(-row.input_length // 512) for row in rows)
    assert len(rows) <= NUM_SHORT


def test_a_system_prompt_before_every_request() -> None:
    row = TraceRow(5.0, 700, 9, [3, 4], "agent", 100, 600)
    assert with_system_prompt([row], 0) == [row]
    assert with_system_prompt([row], 1024) == [
        TraceRow(5.0, 1724, 9, [-1, -2, 3, 4], "agent", 1124, 1624)
    ]


def test_a_cell_is_run_and_the_same_again(tmp_path: Path) -> None:
    folder = write_trace(tmp_path)
    cell = Cell("shared-prompt", "synthetic:4", "round_robin", 0)
    found = run_cell(folder, cell, None)
    assert found["num_requests"] == 100
    assert found["ttft_quantiles_ms"] == sorted(found["ttft_quantiles_ms"])
    again = run_cell(folder, cell, None)
    assert {**again, "wall_s": 0} == {**found, "wall_s": 0}
    assert run_cell(folder, cell, 10)["num_requests"] == 10
    short = run_cell(folder, Cell("short", "short:600", "round_robin", 0), 50)
    assert (short["num_requests"], short["num_hit_blocks"]) == (50, 0)


def test_a_cell_without_its_trace_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"weka_merged_512_12k\.delta\.jsonl\.gz"):
        run_cell(tmp_path, Cell("clean", "weka:1", "round_robin", 0), None)


FOUND = Found(
    ttft={"dynamo:2/16/64": 1.0, "mooncake:0.5": 2.0},
    family={"dynamo:2/16/64": 1.0, "mooncake:0.5": 2.0, "lmetric": 3.0},
    e2e={"trtllm:8": 1.0},
    p99={"lmetric": 9.0},
)


def test_clean_cells_are_ours_the_winners_and_the_standard_ones() -> None:
    cells = list(clean_cells([Row("weka", 1.0)], 2, {"weka:1": FOUND}))
    routers = ["cachelane", "dynamo:2/16/64", "mooncake:0.5", "lmetric", "trtllm:8"]
    routers += [router for router in STANDARD if router not in routers]
    assert cells == [Cell("clean", "weka:1", name, seed) for name in routers for seed in (0, 1)]


def test_cases_bring_what_they_are_compared_with() -> None:
    cells = set(case_cells([Row("weka", 2.0)], 1, {"weka:2": FOUND}))
    assert {cell.row for cell in cells} == {"weka:2"}
    assert {c.router for c in cells if c.case == "slow"} == {
        OURS, "dynamo:2/32/32", "dynamo:1/8/32", "llmd:3/2/2", "least_requests", "dynamo:2/16/64",
    }  # fmt: skip
    lagging = {cell.router for cell in cells if cell.case == "lag"}
    assert lagging == {cell.router for cell in cells if cell.case == "clean"}
    assert {c.case for c in case_cells([Row("short", 600.0)], 1, {})} == {"short"}


def test_cases_that_are_named_bring_their_clean_runs_alone() -> None:
    cells = list(case_cells(ROWS, 1, {}, ["routers-2", "slow"]))
    assert {cell.case for cell in cells} == {"clean", "routers-2", "slow"}
    assert {cell.row for cell in cells if cell.case == "clean"} == {
        "conversation:4", "synthetic:4", "weka:2", "weka:3",
    }  # fmt: skip


def test_the_search_finds_the_best_of_each_family_and_figure(tmp_path: Path) -> None:
    row = Row("weka", 1.0)
    cells = {cell.key: figures(500.0, p99=90.0, e2e=70.0) for cell in search_cells([row])}
    for router, ttft in (("mooncake:1", 10.0), ("mooncake:2", 11.0), ("dynamo:1/4/0", 12.0)):
        cells[Cell("clean", row.name, router, 0).key] = figures(ttft, p99=95.0, e2e=75.0)
    cells[Cell("clean", row.name, "sglang:8/1.5/0.1", 0).key] = figures(600.0, p99=1.0, e2e=2.0)
    found = find_best(Measured(cells, 1), row.name)
    assert found.best == "mooncake:1"
    assert found.ttft == {"mooncake:1": 10.0, "mooncake:2": 11.0, "dynamo:1/4/0": 12.0}
    assert found.e2e == {"sglang:8/1.5/0.1": 2.0}
    assert found.p99 == {"sglang:8/1.5/0.1": 1.0}
    assert {family_of(name) for name in found.family} == set(FAMILIES)
    assert (found.family["mooncake:1"], found.family["dynamo:1/4/0"]) == (10.0, 12.0)
    path = tmp_path / "best.json"
    assert read_best(path) == {}
    write_best(path, {row.name: found})
    assert read_best(path) == {row.name: found}


def test_a_search_without_figures_is_an_error() -> None:
    with pytest.raises(SettingsError, match="weka:1"):
        find_best(Measured({}, 1), "weka:1")


def test_results_go_on_where_they_were(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "routing.json"
    cells = [Cell("clean", "weka:1", name, 0) for name in (OURS, "lmetric", OURS)]
    results = Results.load(path, None)
    assert results.missing(cells) == cells[:2]
    results.cells[cells[0].key] = figures(1.0)
    results.machine = {"cpu": "x"}
    results.save()
    again = Results.load(path, None)
    assert (again.cells, again.machine) == (results.cells, {"cpu": "x"})
    assert again.missing(cells) == [cells[1]]
    again.forget([cells[0], cells[1]])
    assert again.missing(cells) == cells[:2]
    assert list(path.parent.iterdir()) == [path]


def test_results_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "routing.json"
    Results(path, 300).save()
    with pytest.raises(SettingsError, match="--limit 300, not None"):
        Results.load(path, None)
    cell = figures(1.0)
    kept: object
    for kept in (
        [],
        {"cells": {}},
        {"machine": {}, "limit": None, "peers": [], "cells": {"clean|weka:1|lmetric|0": {}}},
        {"machine": {}, "limit": None, "peers": [], "cells": {"x": {**cell, "reuse": None}}},
        {"machine": {}, "limit": None, "peers": [{}], "cells": {"x": cell}},
    ):
        path.write_text(json.dumps(kept))
        with pytest.raises(SettingsError, match=r"routing\.json is no file of this benchmark"):
            Results.load(path, None)


def test_means_need_all_seeds() -> None:
    cells = {
        Cell("clean", "weka:1", "lmetric", 0).key: figures(1.0, num_rerun=2),
        Cell("clean", "weka:1", "lmetric", 1).key: figures(3.0),
        Cell("clean", "weka:1", "mooncake:1", 0).key: figures(0.5),
        Cell("clean", "weka:1", OURS, 0).key: figures(0.1),
    }
    two = Measured(cells, 2)
    found = two.of("clean", "weka:1", "lmetric")
    assert found is not None
    assert (found.ttft, found.num_decisions, found.num_seeds) == (2.0, 11.0, 2)
    assert list(two.peers("clean", "weka:1")) == ["lmetric"]
    assert two.ours("weka:1") is None
    assert list(Measured(cells, 1).peers("clean", "weka:1")) == ["mooncake:1", "lmetric"]
