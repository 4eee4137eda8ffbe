"""The routing table against a naive one: sets and explicit walks, any sequence of events."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controllers.routing_table import HeldBlock, RoutingTable
from controllers.run_tree import MAX_RUN
from controllers.runs import BlockClass
from controllers.worker_state import Overlap
from tests.batches import (
    BLOCK_SIZE,
    CLEARED,
    Worker,
    down,
    lost,
    moved,
    removed,
    snapshot,
    stored,
    up,
)

WORKERS = ("a", "b", "c")
KINDS = (
    *["prefix"] * 5,
    *["piece"] * 3,
    *["remove"] * 4,
    *["evict"] * 3,
    *["move"] * 2,
    *["snapshot"] * 2,
    *["clear", "restart", "gap", "lost", "forget", "down"],
)
NUMBERS = st.integers(0, 10_000)
STEPS = st.lists(st.tuples(st.sampled_from(WORKERS), st.sampled_from(KINDS), NUMBERS, NUMBERS))


def tree(num_blocks: int, seed: int) -> dict[int, int | None]:
    """Block -> parent: long chains with branches, some longer than a run."""
    parents: dict[int, int | None] = {}
    for i in range(num_blocks):
        mix = (i * 2654435761 + seed * 40503) % 1000
        if i and mix < 850:
            parents[1000 + i] = 999 + i
        elif i and mix < 970:
            parents[1000 + i] = 1000 + (mix * 7919) % i
        else:
            parents[1000 + i] = None
    return parents


def path(parents: dict[int, int | None], block: int | None) -> list[int]:
    chain = []
    while block is not None:
        chain.append(block)
        block = parents[block]
    return chain[::-1]


@dataclass
class NaiveWorker:
    """What the laws say, in the most direct way."""

    parents: dict[int, int | None]
    is_stale: bool = False
    held: dict[int, BlockClass] = field(default_factory=dict)

    def store(self, hashes: list[int], block_class: BlockClass) -> None:
        self.held.update(dict.fromkeys(hashes, block_class))

    def remove(self, block: int) -> None:
        if block in self.held:
            del self.held[block]
            for child, parent in self.parents.items():
                if parent == block:
                    self.remove(child)

    def move(self, block: int, medium: str) -> None:
        if block in self.held:
            self.held[block] = self.held[block]._replace(medium=medium)

    def go_stale(self) -> None:
        self.is_stale = True
        self.held.clear()

    def is_attached(self, block: int) -> bool:
        return all(b in self.held for b in path(self.parents, block))

    def overlap(self, prompt: list[int]) -> Overlap | None:
        media = []
        for block in prompt:
            if block not in self.held:
                break
            media.append(self.held[block].medium)
        counts = Counter(media)
        split = (counts["gpu"], counts["host"], counts["disk"])
        return Overlap(len(media), *split) if media else None


class Pair:
    """The table and the naive workers, fed the same."""

    def __init__(self, parents: dict[int, int | None]) -> None:
        self.parents = parents
        self.table = RoutingTable(BLOCK_SIZE)
        self.sources = {name: Worker(name) for name in WORKERS}
        self.naive: dict[str, NaiveWorker] = {}
        for name in WORKERS:
            self.start(name)

    def start(self, name: str) -> None:
        self.table.apply(self.sources[name].batch(up()))
        self.naive[name] = NaiveWorker(self.parents)

    def send(self, name: str, *events) -> None:
        self.table.apply(self.sources[name].batch(*events))

    def check(self) -> None:
        for name, naive in self.naive.items():
            state = self.table.workers[name]
            assert self.table.is_stale(name) == naive.is_stale
            assert self.table.blocks_of(name) == {
                block: HeldBlock(self.parents[block], naive.is_attached(block), block_class)
                for block, block_class in naive.held.items()
            }
            assert state.class_to_num == dict(Counter(naive.held.values()))
            assert state.num_blocks == len(naive.held)
        for block in list(self.parents)[::3]:
            prompt = [*path(self.parents, block), 7]
            expected = {name: worker.overlap(prompt) for name, worker in self.naive.items()}
            assert self.table.overlap(prompt) == {w: o for w, o in expected.items() if o}
        self.check_runs()

    def check_runs(self) -> None:
        """The rules at the top of run_tree."""
        index = self.table._index._tree
        runs = set(index.run_of.values())
        assert {run: list(run.hashes) for run in runs} == {
            run: [h for h in run.hashes if index.run_of[h] is run] for run in runs
        }
        assert sum(len(run.hashes) for run in runs) == len(index.run_of)
        waiting = {run for some in index.waiting.values() for run in some}
        for run in runs:
            assert 0 < len(run.hashes) <= MAX_RUN
            assert run.holders
            assert run.children is None or run.children
            assert all(child.parent is run for child in run.children or ())
            holders = [h for h in index.holders if h is not None and run in h.runs]
            assert run.holders == sum(h.bit for h in holders)
            for holder in holders:
                is_off_gpu = any(c.medium != "gpu" for c in holder.runs[run])
                assert bool(run.off_gpu & holder.bit) == is_off_gpu
            if run.parent is not None:
                assert run in run.parent.children
                assert run.parent.hashes[-1] == run.before
            assert (run in waiting) == (run.parent is None and run.before is not None)
        assert waiting <= runs


def take(pair: Pair, name: str, kind: str, x: int, y: int) -> None:
    """One step on both sides."""
    naive, source = pair.naive[name], pair.sources[name]
    blocks = list(pair.parents)
    block = blocks[x % len(blocks)]
    if kind in ("prefix", "piece"):
        whole = path(pair.parents, block)
        start = 0 if kind == "prefix" else y % len(whole)
        chain = whole[start:]
        block_class = BlockClass(("gpu", "gpu", "host")[y % 3], (35, 80)[y % 2], "ft"[y % 2])
        step = 1 + y % 40
        for i in range(0, len(chain), step):
            part = chain[i : i + step]
            event = stored(
                pair.parents[part[0]],
                part,
                priority=block_class.retention_priority,
                medium=block_class.medium,
                tier=block_class.tier,
            )
            pair.send(name, event)
        if not naive.is_stale:
            naive.store(chain, block_class)
    elif kind == "remove":
        pair.send(name, removed(block))
        naive.remove(block)
    elif kind == "evict":
        chain = path(pair.parents, block)[-1 - y % 30 :]
        order = chain[::-1] if x % 2 else chain
        pair.send(name, removed(*order))
        for each in order:
            naive.remove(each)
    elif kind == "move":
        chain = path(pair.parents, block)[-1 - y % 5 :]
        medium = ("gpu", "host", "disk")[x % 3]
        pair.send(name, moved(medium, *chain))
        for each in chain:
            naive.move(each, medium)
    elif kind == "clear":
        pair.send(name, CLEARED)
        naive.held.clear()
    elif kind in ("restart", "forget", "down"):
        if kind == "forget":
            pair.table.forget(name)
        if kind == "down":
            pair.send(name, down())
        source.restart()
        pair.start(name)
    elif kind == "gap":
        source.batch()
        pair.send(name)
        naive.go_stale()
    elif kind == "lost":
        pair.send(name, lost())
        naive.go_stale()
    else:
        replace_by_snapshot(pair, name, x, y)


def replace_by_snapshot(pair: Pair, name: str, x: int, y: int) -> None:
    """Some whole prefixes, with or without holes, in parts."""
    blocks = list(pair.parents)
    content: dict[int, None] = {}
    for i in range(1 + y % 3):
        content |= dict.fromkeys(path(pair.parents, blocks[(x + 37 * i) % len(blocks)]))
    kept = [b for b in content if (b * x) % 11]
    size = 1 + y % 25
    slices = [kept[i : i + size] for i in range(0, len(kept), size)] or [[]]
    naive = pair.naive[name]
    for part, some in enumerate(slices):
        pairs = [(b, pair.parents[b]) for b in some]
        pair.send(name, snapshot(pairs, part=part, num_parts=len(slices), snapshot_id=x))
    naive.is_stale = False
    naive.held = dict.fromkeys(kept, BlockClass("gpu", 35, "default"))


def compare(parents: dict[int, int | None], steps) -> None:
    pair = Pair(parents)
    for name, kind, x, y in steps:
        take(pair, name, kind, x, y)
    pair.check()
    for name in WORKERS:
        pair.table.forget(name)
    assert pair.table.num_blocks() == 0
    assert pair.table._index._tree.waiting == {}


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 5), STEPS)
def test_same_answers_as_a_naive_table(shape, steps):
    compare(tree(60, shape), steps)


@pytest.mark.parametrize("seed", range(8))
def test_same_answers_after_long_histories(seed):
    rng = random.Random(seed)
    for num_blocks in (20, 60, 60, 150, 300):
        steps = [
            (rng.choice(WORKERS), rng.choice(KINDS), rng.randrange(10_000), rng.randrange(10_000))
            for _ in range(rng.randrange(90))
        ]
        compare(tree(num_blocks, seed), steps)
