"""How long a routing decision takes, beside Dynamo's selection service where that is installed.

    python -m bench.decision_time [--peer-python PATH]

From token ids in a NumPy array to a worker that is reserved, block size 32, over a table of 200,000
(worker, block) pairs and workers that serve three requests each; half the prompts have an overlap.
PATH is the Python of a scratch environment with `pip install ai-dynamo-runtime==1.6.1 pyzmq msgspec
numpy xxhash`. Our runs and the peer's alternate in processes of their own; figures are medians of
`--rounds` runs. The target is against the peer's own way from token ids. `peer given hashes`: it
hashes first, with its own function for blocks, and sequence hashes made here, which its service
takes but has no function for. A pass is over as many waiting requests as it looks at, in CPU time.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from bench.arguments import new_file, positive_int, program
from bench.children import figures_of, medians
from bench.decision_workload import LENGTHS, add_arguments
from bench.report import Row, print_rows, write_json
from controllers.errors import SetupError

HERE = Path(__file__).parent
MIN_RATIO = 3.0  # the peer's time over ours
MAX_PASS_MS = 5.0
PASSES = {"all sent": "pass sent p50 ms", "all held": "pass held p50 ms"}
Figures = dict[str, Any]


def main() -> None:
    try:
        _run(_arguments())
    except SetupError as error:
        sys.exit(f"bench.decision_time: {error}")


def _run(args: argparse.Namespace) -> None:
    found = {}
    for workers in args.workers:
        figures = found[str(workers)] = compare(workers, args)
        peer = f"dynamo {figures['peer']['version']}" if "peer" in figures else None
        title = f"Decision time, {workers} workers, {args.blocks:,} (worker, block) pairs"
        print_rows(title, decision_rows(figures), peer)
    settings = {name: getattr(args, name) for name in ("blocks", "prompts", "passes", "rounds")}
    path = write_json("decision_time", {"settings": settings, "workers": found}, args.json)
    print(f"written to {os.path.relpath(path)}")


def compare(workers: int, args: argparse.Namespace) -> dict[str, Figures]:
    """Medians of alternating runs."""
    kinds = {"ours": [sys.executable, "-m", "bench.decision_time_cachelane"]}
    if args.peer_python:
        kinds["peer"] = [str(args.peer_python), str(HERE / "decision_time_dynamo.py")]
    runs: dict[str, list[Figures]] = {kind: [] for kind in kinds}
    for _ in range(args.rounds):
        for kind, command in kinds.items():
            runs[kind].append(_measure(command, workers, args))
    return {kind: medians(figures) for kind, figures in runs.items()}


def _measure(command: list[str], workers: int, args: argparse.Namespace) -> Figures:
    options = [f"--workers={workers}"]
    options += [f"--{n}={getattr(args, n)}" for n in ("blocks", "prompts", "passes", "seed")]
    return figures_of([*command, *options, f"--per-event={args.per_event}"])


def decision_rows(found: dict[str, Figures]) -> list[Row]:
    """Targets depend on what the peer took in the same minutes."""
    ours, peer = found["ours"], found.get("peer")
    rows: list[Row] = []
    for length in LENGTHS:
        rows += _rows_of(length, ours, peer)
    rows += [
        Row(f"pass over a full queue, {fate}", "ms", ours[key], None, MAX_PASS_MS, True)
        for fate, key in PASSES.items()
    ]
    return rows


def _rows_of(length: int, ours: Figures, peer: Figures | None) -> list[Row]:
    def row(name: str, ours_us: float, way: str | None, quantile: str = "p50") -> Row:
        peer_us = peer[f"{way} {length} {quantile}"] if peer and way else None
        has_target = name == "p50" and peer_us is not None
        target_us = peer_us / MIN_RATIO if has_target and peer_us else None
        return Row(f"{length} blocks, {name}", "us", ours_us, peer_us, target_us, True)

    p50_us = ours[f"run {length} p50"]
    return [
        row("p50", p50_us, "tokens"),
        row("p99", ours[f"run {length} p99"], "tokens", "p99"),
        row("p50, peer given hashes", p50_us, "hashed"),
        row("p50, without hashing", p50_us - ours[f"hashing {length} p50"], "hashes"),
        row("p50, without our queue", ours[f"choose {length} p50"], None),
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser, positive_int)
    parser.add_argument("--workers", type=positive_int, nargs="+", default=[8, 64])
    parser.add_argument("--peer-python", type=program, help="Python with ai-dynamo-runtime")
    parser.add_argument("--rounds", type=positive_int, default=3)
    parser.add_argument(
        "--json", type=new_file, help="default: .cachelane/bench/decision_time.json"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
