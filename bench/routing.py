"""Routing: ours against the formulas of others on traces, and when something is wrong.

    python -m bench.routing --traces FOLDER [--seeds 3] [--jobs N] [--rows conversation:4,weka:2]
        [--only clean|robustness|peers] [--cases routers-2,slow] [--json FILE] [--docs]
        [--dynamo-python PYTHON] [--sglang-python PYTHON]

Every figure is of `controllers.simulation`, and so the same on every machine. Cells are kept in the
JSON file as they come: the same command goes on where it was stopped; `--again` runs our own ones
anew. `--cases` runs those alone (`clean`: the rows without a case). `--search` tries all settings
of peers with seed 0 and writes the best ones to `--best`, where the ordinary command finds them.
`--render` runs nothing and prints what the JSON file has.
`--limit` cuts the traces: what was measured on whole ones is then no measure.

Needs numpy, msgspec and xxhash; plots (`--docs`) need matplotlib. FOLDER has Mooncake's traces and,
if there, the merged coding sessions.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.arguments import new_file, positive_int, program
from bench.report import DIRECTORY, machine
from bench.routing_cells import Cell, Figures, find_trace, run_cells
from bench.routing_checks import Basis
from bench.routing_docs import write_docs
from bench.routing_plan import (
    case_cells,
    case_rows,
    clean_cells,
    find_best,
    read_best,
    search_cells,
    write_best,
)
from bench.routing_report import summary, tables
from bench.routing_results import Measured, Results
from bench.routing_rows import (
    BLOCK_SIZE,
    CLEAN,
    NAME_TO_CASE,
    NUM_BLOCKS,
    NUM_WORKERS,
    OURS,
    ROWS,
    SHORT,
    Row,
    parse_row,
)
from bench.stopping import unwinding
from controllers.errors import CachelaneError, SettingsError, SetupError

NO_TRACES = """{folder} has neither mooncake_conversation.jsonl.gz nor mooncake_synthetic.jsonl.gz.
They are in Mooncake's public repository, github.com/kvcache-ai/Mooncake, folder
FAST25-release/traces: copy conversation_trace.jsonl and synthetic_trace.jsonl to the folder (for
bench.retention too: gzip -c conversation_trace.jsonl > mooncake_conversation.jsonl.gz, and so on).
The coding sessions (weka_merged_512_12k.delta.jsonl.gz) are optional."""
DYNAMO, SGLANG = "dynamo replay", "sglang-router"  # as `bench.routing_peers` calls them
PARTS = ("clean", "robustness", "peers")


def main() -> None:
    args = _arguments()
    try:
        with unwinding():
            sys.exit(_run(args))
    except CachelaneError as error:
        sys.exit(f"bench.routing: {error}")


def _run(args: argparse.Namespace) -> int:
    """The exit status."""
    _check(args)
    results = Results.load(args.json, args.limit)
    failed: list[str] = []
    if not args.render:
        rows = _rows(args)
        cells = _cells(args, rows)
        if args.again:
            results.forget(cell for cell in cells if _is_to_be_run_again(cell, args.cases))
        failed = _compute(args, results, cells)
        if args.search:
            _keep_best(args, results, rows)
            return len(failed) > 0
        if args.only == "peers" or not (args.only or args.cases):
            failed += _real_peers(args, results, rows)
    measured = Measured(results.cells, args.seeds)
    basis = Basis(read_best(args.best), is_cut=args.limit is not None)
    for table in tables(measured, results.peers, basis):
        print(table.text())
    print(summary(measured, basis))
    if args.docs:
        write_docs(results, measured, basis)
    return len(failed) > 0


def _check(args: argparse.Namespace) -> None:
    """What can be known before anything runs. Raises SettingsError."""
    if args.docs and args.limit is not None:
        raise SettingsError("--docs: the page is about whole traces, not those of --limit")
    if args.docs and find_spec("matplotlib") is None:
        raise SettingsError("--docs needs matplotlib: pip install -c constraints.txt -e '.[bench]'")
    if not (args.search or args.best.is_file()):
        raise SettingsError(f"--best: there is no {args.best}; --search makes it")
    if not args.best.parent.is_dir():
        raise SettingsError(f"--best: there is no folder {args.best.parent}")
    if unknown := [name for name in args.cases if name not in NAME_TO_CASE]:
        raise SettingsError(f"--cases: {unknown[0]!r} is none of: {', '.join(NAME_TO_CASE)}")


def _is_to_be_run_again(cell: Cell, cases: Sequence[str]) -> bool:
    """Ours; with --cases not what these are only compared with."""
    return cell.router == OURS and (not cases or cell.case in cases)


def _rows(args: argparse.Namespace) -> list[Row]:
    """Those asked for, or all, whose traces there are."""
    if find_trace(args.traces, "conversation") is None and (
        find_trace(args.traces, "synthetic") is None
    ):
        raise SettingsError(NO_TRACES.format(folder=args.traces))
    wanted = [parse_row(text) for text in args.rows.split(",") if text]
    known = dict.fromkeys((*ROWS, *case_rows()))
    for row in wanted:
        if row not in known:
            names = ", ".join(row.name for row in known)
            raise SettingsError(f"--rows: {row.name} is none of: {names}")
    rows = wanted or list(known)
    lacking = {row for row in rows if row.trace != SHORT and not find_trace(args.traces, row.trace)}
    for row in sorted(lacking):
        print(f"left out: {row.label}, {args.traces} has no such trace")
    return [row for row in rows if row not in lacking]


def _cells(args: argparse.Namespace, rows: Sequence[Row]) -> list[Cell]:
    best = read_best(args.best)
    traced = [row for row in rows if row.trace != SHORT]
    if args.search:
        return list(search_cells(traced))
    cells: list[Cell] = []
    if CLEAN in args.cases or (args.only in (None, "clean") and not args.cases):
        cells += clean_cells(traced, args.seeds, best)
    if args.only in (None, "robustness"):
        cells += case_cells(rows, args.seeds, best, args.cases)
    return cells


def _compute(args: argparse.Namespace, results: Results, cells: Iterable[Cell]) -> list[str]:
    """Runs what the results lack; returns what failed."""
    missing = results.missing(cells)
    if not missing:
        return []
    results.machine = machine()
    started, num_done = time.monotonic(), 0

    def keep(cell: Cell, figures: Figures) -> None:
        nonlocal num_done
        num_done += 1
        results.cells[cell.key] = figures
        results.save()
        print(
            f"[{num_done}/{len(missing)}, {time.monotonic() - started:.0f} s] {cell.label}: "
            f"TTFT {figures['ttft_ms']['mean']:,.1f} ms, run in {figures['wall_s']:.1f} s",
            flush=True,
        )

    print(f"{len(missing)} cells in {args.jobs} processes", flush=True)
    return run_cells(args.traces, missing, args.limit, args.jobs, keep)


def _keep_best(args: argparse.Namespace, results: Results, rows: Iterable[Row]) -> None:
    measured, best = Measured(results.cells, num_seeds=1), read_best(args.best)
    for row in rows:
        if row.trace != SHORT:
            best[row.name] = find_best(measured, row.name)
            print(f"{row.label}: {best[row.name].ttft}")
    write_best(args.best, best)
    print(args.best)


def _real_peers(args: argparse.Namespace, results: Results, rows: Sequence[Row]) -> list[str]:
    """The real Dynamo replay and sglang-router, where a Python that has them is given; returns
    what failed. What the results have is not run again."""
    pythons = {DYNAMO: args.dynamo_python, SGLANG: args.sglang_python}
    if args.limit is not None:
        pythons = dict.fromkeys(pythons)  # they run whole traces
    for peer in (peer for peer, python in pythons.items() if python is None):
        print(f"left out: the real {peer}")
    failed = []
    for peer, python in pythons.items():
        for trace in dict.fromkeys(row.trace for row in rows if row.trace != SHORT):
            speedups = [row.speedup for row in rows if row.trace == trace]
            speedups = _not_replayed(results, peer, trace, speedups)
            path = find_trace(args.traces, trace)
            if python is None or path is None or not speedups:
                continue
            try:
                found = _replayed(peer, python, path, speedups)
            except SetupError as error:
                failed.append(f"{peer}, {trace}: {error}")
                print(f"FAILED {failed[-1]}", flush=True)
                continue
            results.peers += [{**row, "trace": trace} for row in found]
            results.save()
    return failed


def _not_replayed(results: Results, peer: str, trace: str, speedups: list[float]) -> list[float]:
    done = {row["speedup"] for row in results.peers if (row["peer"], row["trace"]) == (peer, trace)}
    if peer == SGLANG and done:
        return []  # there is no time in it, so one speedup stands for all
    return [speedup for speedup in speedups if speedup not in done]


def _replayed(peer: str, python: Path, trace: Path, speedups: list[float]) -> list[dict[str, Any]]:
    from bench.routing_peers import dynamo_rows, sglang_rows  # needs more than running cells does

    measure = dynamo_rows if peer == DYNAMO else sglang_rows
    return measure(python, trace, speedups, NUM_WORKERS, NUM_BLOCKS, BLOCK_SIZE)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--seeds", type=positive_int, default=3)
    jobs = os.cpu_count() or 1
    parser.add_argument("--jobs", type=positive_int, default=jobs, help="processes")
    parser.add_argument("--rows", default="", help="conversation:4,short:600; default: all")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--only", choices=PARTS)
    part.add_argument("--cases", type=_names, default=[], help=", ".join(NAME_TO_CASE))
    part.add_argument("--search", action="store_true")
    parser.add_argument("--limit", type=positive_int, help="only so many requests of each trace")
    parser.add_argument("--json", type=new_file, default=DIRECTORY / "routing.json")
    parser.add_argument("--best", type=Path, default=Path(__file__).with_name("routing_best.json"))
    parser.add_argument("--again", action="store_true", help="run our own cells anew")
    parser.add_argument("--render", action="store_true", help="run nothing")
    parser.add_argument("--docs", action="store_true", help="write docs/benchmarks.md and plots")
    parser.add_argument("--dynamo-python", type=program)
    parser.add_argument("--sglang-python", type=program)
    return parser.parse_args()


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


if __name__ == "__main__":
    main()
