"""The routing table and the block hashing, beside Dynamo's radix tree where that is installed.

    python bench/table.py [--peer-python PATH]

PATH is the Python of a scratch environment with `pip install ai-dynamo-runtime==1.6.1`. Our runs
and the peer's alternate in the same minute on the same generated events; figures are medians of
`--rounds` runs in processes of their own. Events come as JSON, so decoding counts. Rates are those
of the median hundred records; the JSON file has the plain ones too (`..._elapsed_...`).
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from arguments import new_file, positive_int, program
from children import figures_of, medians
from report import Row, print_rows, write_json
from table_measure import typical_us
from table_workload import PROBE_LENGTHS

from controllers.blocks import as_token_array, block_hashes

HERE = Path(__file__).parent
FIND_TARGETS_US = dict(zip(PROBE_LENGTHS, (7.0, 16.0, 68.0), strict=True))
Figures = dict[str, Any]


def measure_table(
    python: str, script: str, workers: int, args: argparse.Namespace, *more: str
) -> Figures:
    """One run in a process of its own."""
    command = [python, str(HERE / script), "--workers", str(workers)]
    command += ["--blocks", str(args.blocks), "--per-event", str(args.per_event)]
    command += ["--seed", str(args.seed), *more]
    return figures_of(command)


def compare(workers: int, args: argparse.Namespace) -> dict[str, Figures]:
    """Medians of alternating runs: ours, ours with eight events a record, the peer."""
    kinds: dict[str, tuple[str, ...]] = {
        "ours": (sys.executable, "table_cachelane.py"),
        "ours_8_per_record": (sys.executable, "table_cachelane.py", "--events-per-record", "8"),
    }
    if args.peer_python:
        kinds["peer"] = (str(args.peer_python), "table_dynamo.py")
    runs: dict[str, list[Figures]] = {kind: [] for kind in kinds}
    for _ in range(args.rounds):
        for kind, (python, script, *more) in kinds.items():
            runs[kind].append(measure_table(python, script, workers, args, *more))
    return {kind: medians(figures) for kind, figures in runs.items()}


def table_rows(found: dict[str, Figures]) -> list[Row]:
    ours, peer = found["ours"], found.get("peer", {})
    rows = []
    for verb in ("store", "remove"):
        key = f"{verb}_blocks_per_s"
        rows.append(Row(f"{verb}, 1 event a record", "blocks/s", ours[key], peer.get(key), 600_000))
        batched = found["ours_8_per_record"][key]
        rows.append(Row(f"{verb}, 8 events a record", "blocks/s", batched, peer.get(key)))
        decoded = ours[f"{verb}_decoded_blocks_per_s"]
        rows.append(Row(f"{verb}, without decoding", "blocks/s", decoded))
    for key in (key for key in ours if key.startswith("find ")):
        length = key.split()[1]
        target = FIND_TARGETS_US[int(length)] if length.isdigit() else None
        rows.append(Row(key.removesuffix(" us"), "us", ours[key], peer.get(key), target, True))
    memory = "bytes_per_block"
    rows.append(
        Row("memory per (worker, block)", "bytes", ours[memory], peer.get(memory), 120, True)
    )
    rows.append(Row("forget a worker", "ms", ours["forget_ms"], peer.get("forget_ms"), 200, True))
    return rows


def measure_hashing() -> Figures:
    """Million tokens/s at block size 32, from an array and from a Python list."""
    figures: Figures = {}
    for num_tokens in (2048, 16_384, 131_072):
        tokens = np.random.default_rng(0).integers(0, 150_000, num_tokens, dtype=np.uint32)
        listed = tokens.tolist()
        ours = typical_us(lambda t=tokens: block_hashes(t, 32), repeat=51)
        from_list = typical_us(lambda t=listed: block_hashes(as_token_array(t), 32), repeat=21)
        figures[f"{num_tokens} tokens, array"] = num_tokens / ours
        figures[f"{num_tokens} tokens, list"] = num_tokens / from_list
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer-python", type=program, help="Python with ai-dynamo-runtime")
    parser.add_argument("--workers", type=positive_int, nargs="+", default=[8, 64])
    parser.add_argument("--blocks", type=positive_int, default=200_000)
    parser.add_argument("--per-event", type=positive_int, default=13)
    parser.add_argument("--rounds", type=positive_int, default=3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=new_file, help="default: .cachelane/bench/table.json")
    args = parser.parse_args()

    hashing = measure_hashing()
    print_rows(
        "Block hashing, block size 32",
        [
            Row(name, "Mtokens/s", rate, target=200 if name.endswith("array") else None)
            for name, rate in hashing.items()
        ],
    )
    tables = {}
    for workers in args.workers:
        found = tables[str(workers)] = compare(workers, args)
        peer = f"dynamo {found['peer']['version']}" if "peer" in found else None
        title = f"Routing table, {workers} workers, {args.blocks:,} (worker, block) pairs"
        print_rows(title, table_rows(found), peer)
    settings = {"blocks": args.blocks, "per_event": args.per_event, "rounds": args.rounds}
    path = write_json(
        "table", {"settings": settings, "hashing": hashing, "tables": tables}, args.out
    )
    print(f"written to {os.path.relpath(path)}")


if __name__ == "__main__":
    main()
