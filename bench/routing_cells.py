"""One cell of the routing benchmark: a router on a row in a case with a seed, run to figures.

Imports the simulator and the standard library alone, so that a bare machine can run cells.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from bench.routing_rows import (
    BLOCK_SIZE,
    JITTER,
    NAME_TO_CASE,
    NUM_BLOCKS,
    NUM_WORKERS,
    OURS,
    SHORT,
    TRACE_FILES,
    label_of,
    parse_row,
)
from controllers.errors import SettingsError
from controllers.simulation.fleet import Fleet
from controllers.simulation.result import Run
from controllers.simulation.settings import FleetSettings
from controllers.simulation.trace import TRACE_BLOCK, Row, Trace, build
from serve_app.simulate_options import read_trace

QUANTILES = (0.01, *(round(0.05 * i, 2) for i in range(1, 20)), 0.97, 0.99, 0.995, 0.999)
NUM_SHORT = 24_000  # requests
SHORT_TOKENS = 200  # median of a prompt
SHORT_SPREAD = 0.5  # of its logarithm
SHORT_OUTPUT = 64
_SECONDS = {"weka": 11.0, "conversation": 7.0, "synthetic": 2.0, SHORT: 8.0}

Figures = dict[str, Any]


class Cell(NamedTuple):
    case: str
    row: str
    router: str
    seed: int

    @property
    def key(self) -> str:
        return "|".join((self.case, self.row, self.router, str(self.seed)))

    @property
    def label(self) -> str:
        row, case = parse_row(self.row), NAME_TO_CASE[self.case]
        return f"{row.label}, {case.title}, {label_of(self.router)}, seed {self.seed}"

    @property
    def expected_s(self) -> float:
        """Only to begin with the long ones."""
        row = parse_row(self.row)
        speed = 1.0 if row.trace == SHORT else row.speedup
        return _SECONDS[row.trace] * (1.0 + 0.2 * speed) * (2.0 if self.router == OURS else 1.0)


def find_trace(folder: Path, trace: str) -> Path | None:
    """The trace's file under the name that it has in the folder."""
    paths = [folder / name for name in TRACE_FILES[trace]]
    return next((path for path in paths if path.is_file()), None)


def run_cell(folder: Path, cell: Cell, limit: int | None) -> Figures:
    """Raises SettingsError. `limit`: only so many requests."""
    row, case = parse_row(cell.row), NAME_TO_CASE[cell.case]
    if row.trace == SHORT:
        trace, speedup = _short_trace(row.speedup, cell.seed, limit), 1.0
    else:
        trace, speedup = _file_trace(folder, row.trace, case.system_tokens, limit), row.speedup
    last_s = trace.requests[-1].arrival_ms / 1e3 / speedup
    settings = FleetSettings(
        num_workers=NUM_WORKERS,
        num_blocks=NUM_BLOCKS,
        speedup=speedup,
        jitter=JITTER,
        seed=cell.seed,
        **case.changes(last_s),
    )
    started = time.perf_counter()
    run = _run(trace, settings, cell.router)
    return _figures(run, time.perf_counter() - started)


def run_cells(
    folder: Path,
    cells: Sequence[Cell],
    limit: int | None,
    num_processes: int,
    on_done: Callable[[Cell, Figures], None],
) -> list[str]:
    """Runs them in processes, long ones first; returns what failed, one line each."""
    failed = []
    pool = ProcessPoolExecutor(num_processes, mp_context=get_context("spawn"))
    try:
        future_to_cell = {
            pool.submit(run_cell, folder, cell, limit): cell
            for cell in sorted(cells, key=lambda cell: -cell.expected_s)
        }
        for future in as_completed(future_to_cell):
            error = future.exception()
            if error is None:
                on_done(future_to_cell[future], future.result())
            else:
                failed.append(f"{future_to_cell[future].label}: {error!r}")
                print(f"FAILED {failed[-1]}", flush=True)
    except BaseException:  # told to end: nobody waits for cells that take a minute
        for process in active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return failed


def _run(trace: Trace, settings: FleetSettings, router: str) -> Run:
    gc.disable()  # a run makes few cycles, and looking for them is an eighth of its time
    try:
        return Fleet(trace, settings, router).run()
    finally:
        gc.enable()
        gc.collect()


def _figures(run: Run, wall_s: float) -> Figures:
    ttft_ms = run.first_token_ms - run.arrival_ms
    quantiles = [round(float(value), 1) for value in np.quantile(ttft_ms, QUANTILES)]
    report: Figures = msgspec.to_builtins(run.report)
    return {**report, "ttft_quantiles_ms": quantiles, "wall_s": round(wall_s, 2)}


@lru_cache(maxsize=2)
def _file_trace(folder: Path, trace: str, system_tokens: int, limit: int | None) -> Trace:
    path = find_trace(folder, trace)
    if path is None:
        raise SettingsError(f"{folder} has no trace {trace}: {' or '.join(TRACE_FILES[trace])}")
    rows = read_trace(path)[:limit]
    return build(with_system_prompt(rows, system_tokens), BLOCK_SIZE)


@lru_cache(maxsize=1)
def _short_trace(rate: float, seed: int, limit: int | None) -> Trace:
    return build(short_prompts(rate, limit or NUM_SHORT, seed), BLOCK_SIZE)


def with_system_prompt(rows: Sequence[Row], num_tokens: int) -> list[Row]:
    """The same `num_tokens` (whole trace blocks) before every prompt."""
    ids = [-1 - block for block in range(num_tokens // TRACE_BLOCK)]
    return [
        msgspec.structs.replace(
            row,
            input_length=row.input_length + num_tokens,
            hash_ids=[*ids, *row.hash_ids],
            system_length=row.system_length + num_tokens,
            history_length=row.history_length + num_tokens,
        )
        for row in rows
    ]


def short_prompts(rate: float, num_requests: int, seed: int) -> list[Row]:
    """Independent arrivals, `rate` a second, of prompts that have nothing in common."""
    rng = np.random.default_rng(seed)
    at_ms = np.cumsum(rng.exponential(1e3 / rate, num_requests))
    lengths = np.exp(rng.normal(np.log(SHORT_TOKENS), SHORT_SPREAD, num_requests)).astype(int) + 1
    rows, next_id = [], 0
    for at, length in zip(at_ms.tolist(), lengths.tolist(), strict=True):
        num_ids = -(-length // TRACE_BLOCK)
        rows.append(Row(at, length, SHORT_OUTPUT, list(range(next_id, next_id + num_ids))))
        next_id += num_ids
    return rows
