"""What `bench.routing` says of its arguments, and which cells a run makes anew."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench.routing import main
from bench.routing_cells import Cell
from bench.routing_rows import OURS
from tests.bench_routing_rig import figures
from tests.test_bench_routing import write_trace

ROW = "synthetic:4"


def run(monkeypatch: pytest.MonkeyPatch, *args: object) -> object:
    """The exit status, or the message."""
    monkeypatch.setattr(sys, "argv", ["bench.routing", *map(str, args)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--seeds", "0"], "--seeds: '0'"),
        (["--jobs", "-1"], "--jobs: '-1'"),
        (["--limit", "0"], "--limit: '0'"),
        (["--json", "/nope/x/y.json"], "no folder /nope/x"),
        (["--dynamo-python", "/nope/python"], "no program /nope/python"),
        (["--sglang-python", "/nope/python"], "no program /nope/python"),
        (["--only", "clean", "--cases", "slow"], "not allowed with"),
    ],
)
def test_a_wrong_argument_is_named(
    args: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, "--traces", ".", *args) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--best", "/nope/best.json"], "--best: there is no /nope/best.json; --search makes it"),
        (["--best", "/nope/best.json", "--search"], "--best: there is no folder /nope"),
        (["--cases", "slow,quick"], "--cases: 'quick' is none of: clean, short, routers-2"),
        (["--docs", "--limit", "5"], "--docs: the page is about whole traces"),
        (["--rows", "weka:9"], "--rows: weka:9 is none of"),
    ],
)
def test_what_cannot_be_is_refused(
    args: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "routing.json"
    told = run(monkeypatch, "--traces", write_trace(tmp_path), "--json", path, *args)
    assert str(told).startswith(f"bench.routing: {message}")
    assert not path.exists()


@pytest.mark.parametrize("kept", ["[]", "{", '{"machine": {}, "limit": null, "peers": []}'])
def test_a_file_of_something_else_is_refused(
    kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "routing.json"
    path.write_text(kept)
    told = run(monkeypatch, "--traces", tmp_path, "--json", path, "--render")
    assert str(told).startswith(f"bench.routing: {path} is no file of this benchmark")
    assert path.read_text() == kept


def test_only_the_cases_that_are_named_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "routing.json"
    routers = (OURS, "dynamo:2/32/32", "dynamo:1/8/32", "llmd:3/2/2")
    cases = ("clean", "routers-2", "lag")
    cells = {Cell(case, ROW, name, 0).key: figures(1.0) for case in cases for name in routers}
    kept: dict[str, object] = {"machine": {}, "limit": None, "peers": [], "cells": cells}
    path.write_text(json.dumps(kept))
    args = ["--traces", write_trace(tmp_path), "--json", path, "--rows", ROW, "--seeds", 1]
    assert run(monkeypatch, *args, "--jobs", 1, "--cases", "routers-2", "--again") == 0
    found = json.loads(path.read_text())["cells"]
    again = Cell("routers-2", ROW, OURS, 0).key
    assert (found.keys(), found[again]["num_requests"]) == (cells.keys(), 100)
    assert {**found, again: None} == {**cells, again: None}
    out = capsys.readouterr().out
    assert out.startswith("1 cells in 1 processes\n")
    assert "left out" not in out
