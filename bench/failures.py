"""What clients see when a part of the fleet fails under load, and how long until all is well.

    python -m bench.failures [--only executor,haproxy] [--repeat 3] [--markdown] [--json FILE]

Eight clients stream short chats all the time; every request from the failure on is counted by what
its client got. Most failures: three scripted executors and two ingresses behind HAProxy on one
node. Failures of nodes: a head without work and two nodes with two pretended GPUs each.
`--markdown` prints the rows of the table in docs/operations.md.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.arguments import new_file, positive_int
from bench.failure_measure import Part, Row, Site, measure
from bench.failure_parts import DIE, HANG, ON_NODES, ON_ONE_NODE
from bench.fleet import SHARED, running_fleet
from bench.local_cluster import running_cluster
from bench.report import write_json

TIMEOUT_S = 2.0
SETTINGS: dict[str, Any] = {
    "executor": {
        "kind": "scripted",
        "num_replicas": 3,
        "block_size": 32,
        "num_gpu_blocks": 2048,
        "scripted": {
            "prefill_ms": 2.0,
            "prefill_ms_per_token": 0.05,
            "decode_ms": 10.0,
            "hang_on": HANG,
            "die_on": DIE,
        },
    },
    "events": {"load_interval_s": 0.5},
    "http": {"num_ingress": 2},
    "tiers": {
        "rules": {
            "interactive": {
                "rank": 0,
                "first_token_timeout_s": TIMEOUT_S,
                "inter_token_timeout_s": TIMEOUT_S,
            },
        },
    },
}
NUM_NODES = 2
COLUMNS = ("failure", "requests", "failed", "last failure s", "slowest ms", "replaced", "whole s")


def on_one_node(parts: dict[str, Part], repeat: int) -> list[Row]:
    if not parts:
        return []
    with running_fleet(SETTINGS) as fleet:
        return rows_of(fleet, parts, repeat)


def on_nodes(parts: dict[str, Part], repeat: int) -> list[Row]:
    if not parts:
        return []
    settings = {**SETTINGS, "executor": {**SETTINGS["executor"], "num_gpus": 1}}
    libs_dir = (SHARED / "kafka" / "libs").resolve()
    with (
        tempfile.TemporaryDirectory(prefix="cachelane-nodes-") as folder,
        running_cluster(Path(folder), settings, NUM_NODES, libs_dir) as cluster,
    ):
        return rows_of(cluster, parts, repeat)


def rows_of(site: Site, parts: dict[str, Part], repeat: int) -> list[Row]:
    rows = []
    for name, part in parts.items():
        found = []
        for _ in range(repeat):
            found.append(asyncio.run(measure(site, name, part)))
            print(found[-1], flush=True)
        rows.append(merged(found))
    return rows


def merged(rows: list[Row]) -> Row:
    """Of several runs: all requests, the worst that clients saw, the median of the time to heal."""
    failures = sum((Counter(row.failures) for row in rows), Counter[str]())
    return rows[0]._replace(
        num_requests=sum(row.num_requests for row in rows),
        failures=dict(failures),
        last_failure_s=max(row.last_failure_s for row in rows),
        slowest_ms=max(row.slowest_ms for row in rows),
        usual_ms=median(row.usual_ms for row in rows),
        num_replaced=max(row.num_replaced for row in rows),
        whole_s=median(row.whole_s for row in rows),
    )


def cells(row: Row) -> tuple[str, ...]:
    """As COLUMNS."""
    failed = ", ".join(f"{num} {kind}" for kind, num in row.failures.items()) or "none"
    return (
        row.title,
        str(row.num_requests),
        failed,
        f"{row.last_failure_s:.1f}" if row.failures else "-",
        f"{row.slowest_ms:.0f} (usual {row.usual_ms:.0f})",
        str(row.num_replaced),
        f"{row.whole_s:.1f}",
    )


def markdown(rows: Iterable[Row]) -> str:
    lines = [COLUMNS, tuple("---" for _ in COLUMNS), *map(cells, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", help="failures, comma separated")
    parser.add_argument("--repeat", type=positive_int, default=1, help="runs of each")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=new_file)
    args = parser.parse_args()
    every = [*ON_ONE_NODE, *ON_NODES]
    only = args.only.split(",") if args.only else every
    if unknown := set(only) - set(every):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; valid: {', '.join(every)}")
    rows: list[Row] = []
    try:
        rows += on_one_node({n: p for n, p in ON_ONE_NODE.items() if n in only}, args.repeat)
        rows += on_nodes({n: p for n, p in ON_NODES.items() if n in only}, args.repeat)
    finally:  # nodes may not come up on a busy machine: what was measured is not lost
        report(rows, args.markdown)
        print(write_json("failures", {"rows": [row._asdict() for row in rows]}, args.json))


def report(rows: list[Row], as_markdown: bool) -> None:
    if as_markdown:
        print(markdown(rows))
        return
    table = Table(*COLUMNS)
    for row in rows:
        table.add_row(*cells(row))
    Console().print(table)


if __name__ == "__main__":
    main()
