"""Measures Dynamo's radix tree (ai-dynamo-runtime) on the workload of table_workload.

Runs in an interpreter of its own that has the package; prints one JSON line. Needs nothing of ours.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import version

from dynamo.llm import RadixTree
from table_measure import rss, seconds, typical_seconds, typical_us
from table_workload import Stored, Workload, generate


class Encoder:
    """Dynamo's router events as JSON bytes, with an id per worker."""

    def __init__(self) -> None:
        self._next_id: dict[int, int] = {}

    def stored(self, event: Stored) -> tuple[int, bytes]:
        blocks = [
            {"block_hash": prefix, "tokens_hash": local}
            for prefix, local in zip(event.prefix, event.local, strict=True)
        ]
        data = {"stored": {"parent_hash": event.parent, "blocks": blocks}}
        return self._encode(event.worker, data)

    def removed(self, event: Stored) -> tuple[int, bytes]:
        leaf_first = list(reversed(event.prefix))
        return self._encode(event.worker, {"removed": {"block_hashes": leaf_first}})

    def _encode(self, worker: int, data: dict) -> tuple[int, bytes]:
        event_id = self._next_id.get(worker, 0)
        self._next_id[worker] = event_id + 1
        event = {"event_id": event_id, "dp_rank": 0, "data": data}
        return worker, json.dumps(event).encode()


def measure(workload: Workload) -> dict[str, float]:
    """The same figures, under the same names, as table_cachelane gives."""
    tree, encoder = RadixTree(), Encoder()
    figures: dict[str, float] = {}
    stored = [encoder.stored(event) for event in workload.stored]
    before = rss()
    _apply(figures, "store", tree, stored, workload.num_blocks)
    figures["bytes_per_block"] = (rss() - before) / workload.num_blocks
    for event in [encoder.stored(event) for event in workload.probe_stored]:
        tree.apply_event(*event)
    for name, chain in workload.probes.items():
        figures[f"find {name} us"] = typical_us(lambda c=chain: tree.find_matches(c.local))
    each = [
        typical_us(lambda c=chain: tree.find_matches(c.local), repeat=5)
        for chain in workload.prompts
    ]
    figures["find conversation us"] = sorted(each)[len(each) // 2]
    half = workload.stored[len(workload.stored) // 2 :]
    removed = [encoder.removed(event) for event in reversed(half)]
    num_removed = sum(len(event.prefix) for event in half)
    _apply(figures, "remove", tree, removed, num_removed)
    figures["forget_ms"] = seconds(lambda: tree.remove_worker(0)) * 1e3
    _check(tree, workload)
    return figures


def _apply(
    figures: dict[str, float],
    verb: str,
    tree: RadixTree,
    events: list[tuple[int, bytes]],
    num_blocks: int,
) -> None:
    start = time.perf_counter()
    whole_s = typical_seconds(events, lambda event: tree.apply_event(*event))
    elapsed_s = time.perf_counter() - start
    figures[f"{verb}_blocks_per_s"] = num_blocks / whole_s
    figures[f"{verb}_elapsed_blocks_per_s"] = num_blocks / elapsed_s


def _check(tree: RadixTree, workload: Workload) -> None:
    """The tree did hold what it was asked for."""
    depth = max(tree.find_matches(workload.probes["512 half"].local).scores.values())
    if depth != 256:
        raise SystemExit(f"the peer found {depth} of 256 blocks")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--per-event", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    args = parser.parse_args()
    figures = measure(generate(args.workers, args.blocks, args.per_event, args.seed))
    print(json.dumps({"version": version("ai-dynamo-runtime"), **figures}))


if __name__ == "__main__":
    main()
