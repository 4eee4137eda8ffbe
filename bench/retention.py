"""Cache hits of retention policies on a mix of chat, documents and agents.

    python -m bench.retention --traces FOLDER [--sizes 2500,5000,...] [--json FILE]

FOLDER has Mooncake's two traces and the merged coding sessions (see `bench.retention_mix`). One
cache of so many blocks of 512 tokens; the second half in time is scored from an empty cache, after
the learned policy has seen the first half. Gap: of the hits that Belady has beyond LRU, the share
that a policy gets. Beside ours stand the figures of an independent implementation of the policy.

Robustness, at the sizes of --doubt: 20 % of request types wrong, all types unknown, and a new
tenant whose chat calls itself agent. Then the sizes of --affine, split over eight workers to which
requests go by the hash of their first two blocks; each worker learns alone.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.arguments import new_file, positive_ints
from bench.report import write_json
from bench.retention_mix import belady, load, traces_folder
from controllers.retention import Retention, RetentionPolicy
from controllers.retention_replay import Hits, Learned, Lru, Policy, Prompt, StaticTiers, replay
from controllers.simulation.trace import TRACE_BLOCK

TYPES = ("interactive", "document", "agent")
# Cache size -> total hit % of the reference and the gap it closes; then the gap to close here.
REFERENCE = {
    2500: (19.9, 51),
    5000: (39.4, 55),
    10000: (58.7, 45),
    20000: (67.0, 19),
    40000: (74.3, 19),
}
TARGET_GAPS = {2500: 50, 5000: 50, 10000: 40, 20000: 19, 40000: 19}
TARGET_FLOOR = 0.9
TARGET_P90_US = 100.0
NUM_WORKERS = 8
_BUILT_IN = RetentionPolicy()
TIERS = RetentionPolicy(request_types={"document": _BUILT_IN.request_types["interactive"]})


class Timed(Learned):
    """Notes how long planning takes; fits are apart from requests, in production too."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(TIERS, TRACE_BLOCK, num_blocks)
        self.plans_us: list[float] = []

    def retention(self, prompt: Prompt) -> Retention:
        self.learned.fit_if_due(prompt.at_s)
        started = time.thread_time()
        planned = super().retention(prompt)
        self.plans_us.append((time.thread_time() - started) * 1e6)
        return planned


def main() -> None:
    args = _arguments()
    prompts = load(args.traces)
    half = len(prompts) // 2
    past, test = prompts[:half], prompts[half:]
    results = []
    for size in args.sizes:
        results += list(_of_size(past, test, size, size in args.doubt))
        write_json("retention", {"results": results}, args.json)
    for size in args.affine:
        results += list(_of_workers(past, test, size))
        write_json("retention", {"results": results}, args.json)


def _of_size(
    past: Sequence[Prompt], test: Sequence[Prompt], size: int, has_doubt: bool
) -> Iterator[dict[str, Any]]:
    """One table: a row for each policy."""
    lru = replay(test, Lru(), size, TRACE_BLOCK)
    best = belady(test, size)
    learned = _warm(Timed(size), past)
    rows: list[tuple[str, Hits]] = [
        ("LRU", lru),
        ("static tiers", replay(test, StaticTiers(TIERS, TRACE_BLOCK), size, TRACE_BLOCK)),
        ("learned", replay(test, learned, size, TRACE_BLOCK)),
    ]
    if has_doubt:
        rows += [
            (name, _relabelled(test, change, _warm(Timed(size), past), size))
            for name, change in _doubts().items()
        ]
    rows.append(("Belady", best))
    p50, p90 = np.percentile(learned.plans_us, [50, 90])
    load = os.getloadavg()[0]
    note = f"planning p50 {p50:.0f} us, p90 {p90:.0f} us of CPU at a load of {load:.1f}"
    _print(f"{size:,} blocks; {note}", rows, lru, best, size)
    plan_us = {"p50": p50, "p90": p90, "load": load}
    for name, hits in rows:
        measured = {"plan_us": plan_us} if name == "learned" else {}
        yield _result(f"{size}", name, hits, lru, best) | measured


def _of_workers(
    past: Sequence[Prompt], test: Sequence[Prompt], size: int
) -> Iterator[dict[str, Any]]:
    """Each worker with its share of the cache and its own part of the requests."""
    share = size // NUM_WORKERS
    lru, learned, best = (Hits(Counter(), Counter()) for _ in range(3))
    for number in range(NUM_WORKERS):
        seen, mine = ([p for p in part if _worker_of(p) == number] for part in (past, test))
        _add(lru, replay(mine, Lru(), share, TRACE_BLOCK))
        _add(learned, replay(mine, _warm(Timed(share), seen), share, TRACE_BLOCK))
        _add(best, belady(mine, share))
    rows = [("LRU", lru), ("learned", learned), ("Belady", best)]
    _print(f"{NUM_WORKERS} workers of {share:,} blocks", rows, lru, best)
    for name, hits in rows:
        yield _result(f"{NUM_WORKERS} x {share}", name, hits, lru, best)


def _worker_of(prompt: Prompt) -> int:
    return hash(tuple(prompt.hashes[:2])) % NUM_WORKERS


def _add(total: Hits, part: Hits) -> None:
    total.asked.update(part.asked)
    total.hit.update(part.hit)


def _result(blocks: str, name: str, hits: Hits, lru: Hits, best: Hits) -> dict[str, Any]:
    return {
        "blocks": blocks,
        "policy": name,
        "hit_rate": hits.rate,
        "by_type": {kind: hits.rate_of(kind) for kind in TYPES},
        "gap_closed": _gap(hits, lru, best),
    }


def _warm(policy: Timed, past: Sequence[Prompt]) -> Timed:
    policy.watch(past)
    return policy


def _doubts() -> dict[str, Callable[[Prompt], Prompt]]:
    rng = random.Random(1)

    def confused(prompt: Prompt) -> Prompt:
        is_wrong = rng.random() < 0.2
        return prompt._replace(request_type=rng.choice(TYPES)) if is_wrong else prompt

    def newcomer(prompt: Prompt) -> Prompt:
        is_chat = prompt.request_type == TYPES[0]
        return prompt._replace(request_type="agent", tenant="new") if is_chat else prompt

    return {
        "20 % of types wrong": confused,
        "types unknown": lambda prompt: prompt._replace(request_type=TYPES[0]),
        "new tenant: chat as agent": newcomer,
    }


def _relabelled(
    test: Sequence[Prompt], change: Callable[[Prompt], Prompt], policy: Policy, size: int
) -> Hits:
    """The policy sees changed requests; hits count for what they are."""
    return replay(test, _Relabelled(policy, change), size, TRACE_BLOCK)


class _Relabelled:
    def __init__(self, policy: Policy, change: Callable[[Prompt], Prompt]) -> None:
        self._policy = policy
        self._change = change
        self._shown: Prompt | None = None

    def retention(self, prompt: Prompt) -> Retention:
        self._shown = self._change(prompt)
        return self._policy.retention(self._shown)

    def done(self, prompt: Prompt, num_hits: int, removed: Sequence[int]) -> None:
        assert self._shown is not None
        self._policy.done(self._shown, num_hits, removed)


def _gap(hits: Hits, lru: Hits, best: Hits) -> float:
    return (hits.rate - lru.rate) / (best.rate - lru.rate)


def _print(
    title: str, rows: Sequence[tuple[str, Hits]], lru: Hits, best: Hits, size: int = 0
) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("hit %", no_wrap=True)
    for column in ("total", "gap", *TYPES, "least"):
        table.add_column(column, justify="right")
    for name, hits in rows:
        least = min(hits.rate_of(kind) / max(1e-9, lru.rate_of(kind)) for kind in TYPES)
        shares = [f"{100 * hits.rate_of(kind):.1f}" for kind in TYPES]
        table.add_row(
            name, f"{100 * hits.rate:.1f}", f"{100 * _gap(hits, lru, best):.0f} %", *shares,
            f"{100 * least:.0f} %",
        )  # fmt: skip
    if size in REFERENCE:
        total, gap = REFERENCE[size]
        table.add_row("reference", f"{total}", f"{gap} %", "", "", "", "")
        table.caption = (
            f"gap closed: target {TARGET_GAPS[size]} %; least: type that fares worst, of its LRU "
            f"hits, target {TARGET_FLOOR:.0%}; planning p90: target {TARGET_P90_US:.0f} us of CPU"
        )
    Console().print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--traces", type=traces_folder, required=True)
    parser.add_argument("--sizes", type=positive_ints, default="2500,5000,10000,20000,40000")
    parser.add_argument("--doubt", type=positive_ints, default="2500,5000,10000,20000,40000")
    parser.add_argument("--affine", type=positive_ints, default="20000,40000")
    parser.add_argument("--json", type=new_file)
    args = parser.parse_args()
    if any(size < NUM_WORKERS for size in args.affine):
        parser.error(f"--affine: {NUM_WORKERS} workers share so many blocks")
    return args


if __name__ == "__main__":
    main()
