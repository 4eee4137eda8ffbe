"""Whether routing should mind where there is no room to keep a prompt.

    python -m bench.retention_routing --traces FOLDER [--sizes 625,1250,2500] [--seeds 3]
                                      [--weights 0,0.1] [--speedup 1] [--requests N] [--json FILE]

The mix of `bench.retention` through the simulator: eight workers, each with so many blocks of 512
tokens, learned retention, and production's router with each `routing.loss_weight`. Means over the
seeds; hits are of prompt tokens, those of the second half in time, after learning from the first.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.arguments import new_file, positive_int, positive_ints, positive_number, shares
from bench.report import write_json
from bench.retention import TIERS, TYPES
from bench.retention_mix import load_rows, traces_folder
from controllers.placement import PlacementSettings
from controllers.retention import RetentionPolicy
from controllers.simulation.fleet import Fleet
from controllers.simulation.ingresses import OWN_ROUTER
from controllers.simulation.settings import FleetSettings
from controllers.simulation.trace import TRACE_BLOCK, Trace, build

BLOCK_SIZE = 32
NUM_WORKERS = 8
LEARNED = RetentionPolicy(policy="learned", request_types=TIERS.request_types)


def main() -> None:
    args = _arguments()
    trace = build(load_rows(args.traces)[: args.requests], BLOCK_SIZE)
    results: list[dict[str, Any]] = []
    for size in args.sizes:
        runs: list[dict[str, Any]] = []
        for run in _of_size(trace, size, args.seeds, args.weights, args.speedup):
            runs.append(run)
            write_json("retention_routing", {"results": results + runs}, args.json)
        results += runs
        _print(size, args.weights, runs)


def _of_size(
    trace: Trace, size: int, num_seeds: int, weights: Sequence[float], speedup: float
) -> Iterator[dict[str, Any]]:
    for seed in range(num_seeds):
        for weight in weights:
            settings = FleetSettings(
                num_workers=NUM_WORKERS,
                num_blocks=size * TRACE_BLOCK // BLOCK_SIZE,
                speedup=speedup,
                seed=seed,
                routing=PlacementSettings(loss_weight=weight),
                retention=LEARNED,
            )
            yield {"blocks": size, "seed": seed, "loss_weight": weight} | _run(trace, settings)


def _run(trace: Trace, settings: FleetSettings) -> dict[str, Any]:
    run = Fleet(trace, settings, OWN_ROUTER).run()
    is_second = np.arange(len(trace.requests)) >= len(trace.requests) // 2
    kinds = np.array([request.request_type for request in trace.requests])
    asked = np.array([request.num_tokens for request in trace.requests])

    def hits(which: Any) -> float:
        return 100.0 * float(run.cached_tokens[which].sum() / asked[which].sum())

    report = run.report
    return {
        "ttft_ms": report.ttft_ms.mean,
        "ttft_p99_ms": report.ttft_ms.p99,
        "e2e_ms": report.e2e_ms.mean,
        "reuse": 100.0 * report.reuse,
        "hits": hits(is_second),
        **{kind: hits(is_second & (kinds == kind)) for kind in TYPES},
        "busiest_over_mean": report.busiest_over_mean,
    }


def _print(size: int, weights: Sequence[float], runs: Sequence[dict[str, Any]]) -> None:
    table = Table(title=f"{NUM_WORKERS} workers of {size:,} blocks", title_justify="left")
    table.add_column("loss_weight")
    figures = [name for name in runs[0] if name not in ("blocks", "seed", "loss_weight")]
    for name in figures:
        table.add_column(name, justify="right")
    for weight in weights:
        own = [run for run in runs if run["loss_weight"] == weight]
        means = [np.mean([run[name] for run in own]) for name in figures]
        table.add_row(f"{weight:g}", *[f"{mean:.2f}" for mean in means])
    Console(width=140).print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--traces", type=traces_folder, required=True)
    parser.add_argument("--sizes", type=positive_ints, default="625,1250,2500")
    parser.add_argument("--seeds", type=positive_int, default=3)
    parser.add_argument("--weights", type=shares, default="0,0.1")
    parser.add_argument("--speedup", type=positive_number, default=1.0)
    parser.add_argument(
        "--requests", type=positive_int, help="Only so many, from the first one on."
    )
    parser.add_argument("--json", type=new_file)
    return parser.parse_args()


if __name__ == "__main__":
    main()
