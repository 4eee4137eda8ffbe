from __future__ import annotations

from random import Random

import numpy as np
import pytest

from controllers.block_index import BlockIndex
from controllers.prefix_depths import depths_of
from controllers.run_tree import MAX_RUN
from controllers.runs import BlockClass, Holder, Run

GPU = BlockClass("gpu", 35, "")


class Watched(dict[int, Run]):
    """Counts what is looked up."""

    num_looks = 0

    def get(self, block_hash: int, default: object = None) -> Run | None:  # type: ignore[override]
        self.num_looks += 1
        return super().get(block_hash)


def hold(index: BlockIndex, holder: Holder, hashes: list[int], step: int) -> None:
    """Stored in events of `step` blocks."""
    for start in range(0, len(hashes), step):
        part = hashes[start : start + step]
        before = hashes[start - 1] if start else None
        assert index.store(holder, before, part, [GPU] * len(part))


@pytest.mark.parametrize("seed", range(20))
def test_every_worker_has_what_it_stored(seed: int) -> None:
    rng = Random(seed)
    index, prompt = BlockIndex(), list(range(1, 1 + rng.choice([1, 5, 64, 65, 700])))
    depths: dict[int, int] = {}
    for _ in range(rng.choice([1, 3, 20])):
        holder, depth = index.new_holder(), rng.randrange(len(prompt) + 1)
        hold(index, holder, prompt[:depth], rng.choice([1, 13, 64]))
        depths[holder.bit] = depth
    found = {
        holder.bit: depth
        for mask, depth in index.depths(prompt)
        for holder in index._tree.holders_in(mask)
    }
    assert found == {bit: depth for bit, depth in depths.items() if depth}
    array: object = np.array(prompt, np.uint64)
    assert index.depths(array) == index.depths(prompt)  # type: ignore[arg-type]
    assert [depth for _, depth in index.depths(prompt)] == sorted(set(found.values()))


def looks(num_held: int, num_asked: int) -> int:
    index, prompt = BlockIndex(), list(range(1, num_asked + 1))
    first, second = index.new_holder(), index.new_holder()
    hold(index, first, prompt[:num_held], 13)
    hold(index, second, prompt[:num_held], 13)
    run_of = Watched(index._run_of)
    assert depths_of(run_of, prompt) == [(first.bit | second.bit, num_held)]
    return run_of.num_looks


def test_a_run_says_how_far_it_reaches() -> None:
    assert looks(MAX_RUN // 2, MAX_RUN) == 3  # its first block, its run, the block after it
    assert looks(MAX_RUN, MAX_RUN) == 2
    assert looks(2048, 4096) <= 11
    assert looks(4096, 4096) == 2


def test_nothing_is_held_of_an_empty_or_unknown_prompt() -> None:
    assert depths_of({}, []) == []
    assert depths_of({}, [1, 2]) == []


def test_a_run_that_another_thread_cut_says_nothing() -> None:
    """The block was there when its run was looked up, and is not when the run is read."""
    cut = Run([1], None, None)
    cut.attached = 1
    assert depths_of({1: cut, 2: cut, 3: cut}, [1, 2, 3, 4]) == [(1, 3)]
