"""The real routers of others on the traces of `cachelane simulate`, where they are installed.

    python -m bench.routing_peers TRACE... [--dynamo-python PATH] [--sglang-python PATH]

PATH is the Python of a scratch environment with `pip install ai-dynamo-runtime==1.6.1`, or with
`pip install sglang-router aiohttp`. A part whose Python is not given is left out, and said so.

Figures have the names of `cachelane simulate`. Dynamo: its own offline replay, that is its router
and its mocked engines, at the very arrival times that our simulator uses for the same seed; times,
reuse and end to end compare directly. Its `busiest_over_mean` is by prompt tokens computed, ours by
the time that took. Ties are random there, so that a mean moves by about 1 % from run to run.

sglang-router: the real binary over HTTP, with mock workers that only cache and wait. Clients ask
as fast as they are answered, so arrivals and times of the trace do not count and no times are
given: reuse compares, as far as it does not depend on load; `busiest_over_mean` is by blocks
computed. It does not know what workers evict: it guesses from what it sent.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from bench.arguments import existing_file, new_file, positive_int, positive_number, program
from bench.children import figures_of
from bench.report import write_json
from controllers.errors import CachelaneError
from controllers.simulation.trace import TRACE_BLOCK, Row, arrivals_ms, build
from serve_app.simulate_options import read_trace

HERE = Path(__file__).parent
JITTER = 0.01  # of `cachelane simulate`
DYNAMO_ROUTERS = {"default": "1/1/0", "tuned": "2/32/32", "round_robin": "round_robin"}
SGLANG_ROUTERS = ("cache_aware", "round_robin")
NUM_CLIENTS = 64
TIMEOUT_S = 900.0
Figures = dict[str, Any]


def dynamo_rows(
    python: Path,
    trace: Path,
    speedups: Sequence[float],
    workers: int,
    blocks: int,
    block_size: int,
    seeds: Sequence[int] = (0,),
    jitter: float = JITTER,
) -> list[Figures]:
    """By speedup: its KV router with default and tuned weights, and round robin; means over seeds.

    {peer, version, router, trace, speedup, seeds, num_requests, ttft_ms and e2e_ms with mean, p50
    and p99, reuse, busiest_over_mean}. Raises SettingsError if the trace cannot be read,
    SetupError if the peer fails.
    """
    rows = read_trace(trace)
    found = []
    for speedup in speedups:
        runs: dict[str, list[Figures]] = defaultdict(list)
        for seed in seeds:
            with _trace_file(timed(rows, block_size, speedup, jitter, seed)) as path:
                for name, weights in DYNAMO_ROUTERS.items():
                    command = [python, HERE / "routing_peers_dynamo.py", path, "--router", weights]
                    command += ["--workers", workers, "--blocks", blocks]
                    command += ["--block-size", block_size]
                    runs[name].append(figures_of(command, TIMEOUT_S))
        found += [
            {
                "peer": "dynamo replay", "router": name, "trace": trace.name, "speedup": speedup,
                "seeds": len(seeds), **mean_of(figures),
            }
            for name, figures in runs.items()
        ]  # fmt: skip
    return found


def sglang_rows(
    python: Path,
    trace: Path,
    speedups: Sequence[float],
    workers: int,
    blocks: int,
    block_size: int,
    clients: int = NUM_CLIENTS,
) -> list[Figures]:
    """One run by policy, for the first of `speedups`: there is no time in it. Caches are as large
    in tokens as `blocks` of `block_size`.

    {peer, version, router, trace, speedup, num_requests, reuse, busiest_over_mean, requests_per_s}.
    Raises SettingsError if the trace cannot be read, SetupError if the peer fails.
    """
    found = []
    with _trace_file(read_trace(trace)) as path:
        for policy in SGLANG_ROUTERS:
            command = [python, HERE / "routing_peers_sglang.py", path, "--policy", policy]
            command += ["--workers", workers, "--blocks", blocks * block_size // TRACE_BLOCK]
            figures = figures_of([*command, "--clients", clients], TIMEOUT_S)
            found.append(
                {
                    "peer": "sglang-router", "router": policy, "trace": trace.name,
                    "speedup": speedups[0], **figures,
                }
            )  # fmt: skip
    return found


def timed(
    rows: Sequence[Row], block_size: int, speedup: float, jitter: float, seed: int
) -> list[Row]:
    """Rows in the order of arrival, with the arrival times of the simulator."""
    ordered = sorted(rows, key=lambda row: row.timestamp)
    times_ms = arrivals_ms(build(ordered, block_size), speedup, jitter, seed).tolist()
    return [
        msgspec.structs.replace(row, timestamp=time_ms)
        for row, time_ms in zip(ordered, times_ms, strict=True)
    ]


def mooncake_lines(rows: Iterable[Row]) -> Iterator[str]:
    """Mooncake's format as peers read it: an id for every trace block, the last, partial one
    included. Where the trace has none for it, one that nothing else has."""
    rows = list(rows)
    next_id = 1 + max((max(row.hash_ids, default=0) for row in rows), default=0)
    for row in rows:
        num_ids = -(-row.input_length // TRACE_BLOCK)
        num_missing = max(0, num_ids - len(row.hash_ids))
        own = range(next_id, next_id + num_missing)
        next_id += num_missing
        fields = {
            "timestamp": row.timestamp,
            "input_length": row.input_length,
            "output_length": max(1, row.output_length),
            "hash_ids": [*row.hash_ids[:num_ids], *own],
        }
        yield json.dumps(fields)


def mean_of(runs: Sequence[Figures]) -> Figures:
    """Of numbers, one level deep; the rest is as in the first run."""
    means: Figures = {}
    for name, first in runs[0].items():
        values = [run[name] for run in runs]
        if isinstance(first, dict):
            means[name] = mean_of(values)
        else:
            means[name] = statistics.fmean(values) if isinstance(first, float) else first
    return means


@contextmanager
def _trace_file(rows: Iterable[Row]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.jsonl")
        path.write_text("".join(f"{line}\n" for line in mooncake_lines(rows)))
        yield path


def _print(rows: Sequence[Figures]) -> None:
    table = Table(title="Real peers", title_justify="left")
    names = (
        "",
        "trace",
        "speedup",
        "TTFT mean / p50 / p99, ms",
        "end to end, ms",
        "reuse",
        "busiest",
    )
    for name in names:
        table.add_column(name, justify="right" if name not in ("", "trace") else "left")
    for row in rows:
        ttft = row.get("ttft_ms")
        table.add_row(
            f"{row['peer']} {row['version']}, {row['router']}",
            row["trace"].split(".")[0],
            f"{row['speedup']:g}",
            "-" if ttft is None else f"{ttft['mean']:.1f} / {ttft['p50']:.1f} / {ttft['p99']:,.0f}",
            "-" if ttft is None else f"{row['e2e_ms']['mean']:,.0f}",
            f"{row['reuse']:.3f}",
            f"{row['busiest_over_mean']:.2f}",
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", type=existing_file, nargs="+", help="as of `cachelane simulate`")
    parser.add_argument("--dynamo-python", type=program)
    parser.add_argument("--sglang-python", type=program)
    parser.add_argument("--speedups", type=positive_number, nargs="+", default=[1.0, 2.0, 4.0])
    parser.add_argument("--seeds", type=positive_int, default=1)
    parser.add_argument("--workers", type=positive_int, default=8)
    parser.add_argument("--blocks", type=positive_int, default=65_536)
    parser.add_argument("--block-size", type=positive_int, default=32)
    parser.add_argument(
        "--json", type=new_file, help="default: .cachelane/bench/routing_peers.json"
    )
    try:
        _measure(parser.parse_args())
    except CachelaneError as error:
        sys.exit(f"bench.routing_peers: {error}")


def _measure(args: argparse.Namespace) -> None:
    fleet = (args.speedups, args.workers, args.blocks, args.block_size)
    rows: list[Figures] = []
    if args.dynamo_python is None:
        print("left out: Dynamo's own replay (--dynamo-python PATH)")
    if args.sglang_python is None:
        print("left out: sglang-router (--sglang-python PATH)")
    for trace in args.traces:
        if args.dynamo_python is not None:
            rows += dynamo_rows(args.dynamo_python, trace, *fleet, seeds=range(args.seeds))
        if args.sglang_python is not None:
            rows += sglang_rows(args.sglang_python, trace, *fleet)
    _print(rows)
    print(f"written to {os.path.relpath(write_json('routing_peers', {'rows': rows}, args.json))}")


if __name__ == "__main__":
    main()
