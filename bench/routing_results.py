"""Figures of cells: kept in a JSON file as they come, averaged over seeds."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec

from bench.routing_cells import Cell, Figures
from bench.routing_rows import CLEAN, OURS
from controllers.errors import SettingsError


class Mean(NamedTuple):
    """Over seeds. Times are in ms; `busiest`: busiest worker's prefill work over the mean's."""

    num_seeds: int
    ttft: float
    p50: float
    p99: float
    e2e: float
    reuse: float
    busiest: float
    num_decisions: float
    wall_s: float
    quantiles: tuple[float, ...]  # of TTFT, at routing_cells.QUANTILES


class _Times(msgspec.Struct):
    mean: float
    p50: float
    p99: float


class _Cell(msgspec.Struct):
    """What the tables read of it."""

    ttft_ms: _Times
    e2e_ms: _Times
    reuse: float
    busiest_over_mean: float
    num_requests: int
    num_rerun: int
    wall_s: float
    ttft_quantiles_ms: list[float]


class _Peer(msgspec.Struct):
    """As `bench.routing_peers` writes it; one that knows no times has none."""

    peer: str
    version: str
    router: str
    trace: str
    speedup: float
    reuse: float
    busiest_over_mean: float
    ttft_ms: _Times | None = None


class _Kept(msgspec.Struct):
    """What the file must have."""

    machine: dict[str, Any]
    limit: int | None
    cells: dict[str, _Cell]
    peers: list[_Peer]


class Results:
    """`cells` by `Cell.key`. `limit`: only so many requests of each trace were run."""

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self._path = path
        self.limit = limit
        self.machine: dict[str, Any] = {}
        self.cells: dict[str, Figures] = {}
        self.peers: list[dict[str, Any]] = []

    @classmethod
    def load(cls, path: Path, limit: int | None) -> Results:
        """What the file has; nothing if there is none. Raises SettingsError for another limit."""
        results = cls(path, limit)
        if not path.exists():
            return results
        try:
            kept = json.loads(path.read_text("utf-8"))
            msgspec.convert(kept, _Kept)
        except (OSError, ValueError) as error:
            raise SettingsError(f"{path} is no file of this benchmark: {error}") from error
        results.machine, results.cells = kept["machine"], kept["cells"]
        results.peers, results.limit = kept["peers"], kept["limit"]
        if results.limit != limit:
            raise SettingsError(f"{path} is of --limit {results.limit}, not {limit}")
        return results

    def save(self) -> None:
        """Whole or not at all: a run may be killed at any time."""
        kept = {
            "machine": self.machine,
            "limit": self.limit,
            "peers": self.peers,
            "cells": self.cells,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(".part")
        beside.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
        os.replace(beside, self._path)

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """Each once, in their order."""
        return [cell for cell in dict.fromkeys(cells) if cell.key not in self.cells]

    def forget(self, cells: Iterable[Cell]) -> None:
        """They are to be run again."""
        for cell in cells:
            self.cells.pop(cell.key, None)


class Measured:
    """Means over seeds 0 ... `num_seeds` - 1; what lacks one of them counts as not measured."""

    def __init__(self, cells: dict[str, Figures], num_seeds: int) -> None:
        self._cells = cells
        self.num_seeds = num_seeds

    def of(self, case: str, row: str, router: str) -> Mean | None:
        keys = [Cell(case, row, router, seed).key for seed in range(self.num_seeds)]
        found = [self._cells[key] for key in keys if key in self._cells]
        return mean(found) if len(found) == len(keys) else None

    def peers(self, case: str, row: str) -> dict[str, Mean]:
        """Router -> figures, lowest mean TTFT first."""
        names = {key.split("|")[2]: None for key in self._cells if key.startswith(f"{case}|{row}|")}
        found = {name: self.of(case, row, name) for name in names if name != OURS}
        known = {name: figures for name, figures in found.items() if figures is not None}
        return dict(sorted(known.items(), key=lambda item: item[1].ttft))

    def ours(self, row: str, case: str = CLEAN) -> Mean | None:
        return self.of(case, row, OURS)


def mean(cells: Sequence[Figures]) -> Mean:
    def over(*path: str) -> float:
        return fmean(_at(cell, path) for cell in cells)

    return Mean(
        len(cells),
        over("ttft_ms", "mean"),
        over("ttft_ms", "p50"),
        over("ttft_ms", "p99"),
        over("e2e_ms", "mean"),
        over("reuse"),
        over("busiest_over_mean"),
        fmean(_num_decisions(cell) for cell in cells),
        over("wall_s"),
        tuple(fmean(at) for at in zip(*(c["ttft_quantiles_ms"] for c in cells), strict=True)),
    )


def _at(cell: Figures, path: Sequence[str]) -> float:
    value: Any = cell
    for name in path:
        value = value[name]
    return float(value)


def _num_decisions(cell: Figures) -> int:
    """Requests, those of dying workers again, and pieces of prompts where they are counted."""
    return int(cell["num_requests"]) + int(cell["num_rerun"]) + int(cell.get("num_pieces", 0))
