"""Which worker holds which blocks, and how deep each one holds a prompt.

Owns the questions and changes that the routing table needs, over the runs of `run_tree`. Knows no
events, epochs or names.

1. Dropping a block drops the blocks after it that the same worker holds.
2. One thread changes the index. Others may call `depths` and `media` meanwhile without a lock:
   they see states in between, never an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import chain
from operator import xor

from controllers.prefix_depths import depths_of
from controllers.run_tree import MAX_RUN, RunTree
from controllers.runs import BlockClass, Holder, Run


class BlockIndex:
    """Blocks of all workers."""

    def __init__(self) -> None:
        self._tree = RunTree()
        self._run_of = self._tree.run_of

    def __len__(self) -> int:
        """Different blocks held by anybody."""
        return len(self._run_of)

    @property
    def off_gpu(self) -> int:
        """Bits of the workers that may hold blocks on another medium than the gpu."""
        return self._tree.off_gpu

    def new_holder(self) -> Holder:
        """A holder of nothing, on the lowest free bit."""
        holders = self._tree.holders
        position = holders.index(None) if None in holders else len(holders)
        holder = Holder(1 << position)
        holders[position : position + 1] = [holder]
        return holder

    def free_holder(self, holder: Holder) -> None:
        """Drop everything and give the bit back."""
        self.drop_all(holder)
        self._tree.holders[holder.bit.bit_length() - 1] = None

    def depths(self, hashes: Sequence[int]) -> list[tuple[int, int]]:
        """(mask, depth) pairs, depths rising: these workers hold exactly the first `depth` blocks.
        Workers without the first block are left out."""
        return depths_of(self._run_of, hashes)

    def media(self, hashes: Sequence[int], depth: int) -> Iterator[tuple[int, list[BlockClass]]]:
        """(worker bit, classes of the blocks) for the runs, among the first `depth` blocks, that a
        worker holds partly off the gpu. O(runs), so about depth / 64 steps.
        """
        end = hashes[depth - 1]
        run = self._run_of.get(end)
        while run is not None:
            run_hashes = run.hashes
            num = run_hashes.index(end) + 1 if end in run_hashes else 0
            for holder in self._tree.holders_in(run.attached & run.off_gpu):
                yield holder.bit, holder.runs.get(run, [])[:num]
            run = run.parent
            end = run.hashes[-1] if run else 0

    def store(
        self, holder: Holder, before: int | None, hashes: list[int], classes: list[BlockClass]
    ) -> bool:
        """Consecutive blocks after `before` (None: the start) are held. Blocks held already keep
        their place and take the new class. False: a block is known after another one, which no
        hash allows; the blocks before it are stored.
        """
        start = 0
        while start < len(hashes):
            run = self._run_of.get(hashes[start])
            if run is None:
                stop = self._end_of_new(hashes, start)
                if stop - start == len(hashes):
                    self._tree.add(holder, before, hashes, classes)
                else:
                    self._tree.add(holder, before, hashes[start:stop], classes[start:stop])
            elif _before(run, hashes[start]) != before:
                return False
            else:
                stop = self._share(holder, run, hashes, classes, start)
            before = hashes[stop - 1]
            start = stop
        return True

    def remove(self, holder: Holder, hashes: list[int]) -> int:
        """Drop blocks and what follows them on this worker; unknown ones are no fault.

        Returns the number of blocks dropped. Fastest when a block comes before its parent.
        """
        before = holder.num_blocks
        position = 0
        while position < len(hashes):
            run = self._run_of.get(hashes[position])
            if run is None or not run.holders & holder.bit:
                position += 1
            else:
                last = _position(run, hashes[position])
                num = _num_equal_upwards(run.hashes, last, hashes, position)
                position += num
                cut = last + 1 - num
                if cut and run.holders == holder.bit and run.children is None:
                    self._tree.truncate(holder, run, cut)
                else:
                    self._cut(holder, run, cut)
        return before - holder.num_blocks

    def update(
        self, holder: Holder, hashes: list[int], medium: str | None, priority: int | None
    ) -> None:
        """Blocks moved to `medium` or have a new retention priority; None: unchanged."""
        for block_hash in hashes:
            run = self._run_of.get(block_hash)
            if run is not None and run.holders & holder.bit:
                position = _position(run, block_hash)
                old = holder.runs[run][position]
                new = BlockClass(
                    old.medium if medium is None else medium,
                    old.retention_priority if priority is None else priority,
                    old.tier,
                )
                self._tree.reclassify(holder, run, position, [new])

    def keep_only(self, holder: Holder, keep: set[int]) -> None:
        """Drop every block of the worker that is not in `keep`, and what follows it."""
        for run in list(holder.runs):
            if run in holder.runs and not keep.issuperset(run.hashes):
                cut = next(i for i, block_hash in enumerate(run.hashes) if block_hash not in keep)
                self._cut(holder, run, cut)

    def drop_all(self, holder: Holder) -> None:
        """The worker holds nothing any more. O(its runs), and O(blocks) only it holds."""
        for run in reversed(list(holder.runs)):
            self._disown(holder, run)
        self._tree.off_gpu &= ~holder.bit

    def contents(self, holder: Holder) -> Iterator[tuple[int, int | None, bool, BlockClass]]:
        """(hash, hash before it, is_attached, class) of every block of the worker."""
        for run, classes in list(holder.runs.items()):
            is_attached = bool(run.attached & holder.bit)
            before = run.before
            for block_hash, block_class in zip(run.hashes, classes, strict=True):
                yield block_hash, before, is_attached, block_class
                before = block_hash

    def fingerprint(self, holder: Holder) -> int:
        """XOR of the worker's attached hashes."""
        attached = (run.hashes for run in list(holder.runs) if run.attached & holder.bit)
        return reduce(xor, chain.from_iterable(attached), 0)

    def _end_of_new(self, hashes: list[int], start: int) -> int:
        """End of the blocks from `start` that nobody holds; a block waited for ends them."""
        end = min(len(hashes), start + MAX_RUN)
        if not self._tree.waiting and self._run_of.keys().isdisjoint(hashes[start:end]):
            return end
        for position in range(start, end):
            if hashes[position] in self._run_of:
                return position
            if hashes[position] in self._tree.waiting:
                return position + 1
        return end

    def _share(
        self, holder: Holder, run: Run, hashes: list[int], classes: list[BlockClass], start: int
    ) -> int:
        """Hold also the blocks of `run` that equal hashes[start:]; returns the end of those."""
        first = _position(run, hashes[start])
        stop = start + _num_equal(run.hashes, first, hashes, start)
        last = first + stop - start
        if run.holders & holder.bit:
            self._tree.reclassify(holder, run, first, classes[start:stop])
            return stop
        if last < len(run.hashes):
            run = self._tree.split(run, last)
        if first > 0:
            self._tree.split(run, first)
        self._tree.own(holder, run, classes[start:stop])
        self._tree.merge_up(run)
        return stop

    def _cut(self, holder: Holder, run: Run, length: int) -> None:
        """Leave the worker the first `length` blocks of the run and nothing after them."""
        subtree: list[Run] = []
        todo = [run]
        while todo:
            children = todo.pop().children or ()
            held = [child for child in children if child.holders & holder.bit]
            todo += held
            subtree += held
        for child in reversed(subtree):
            self._disown(holder, child)
        if length == 0:
            self._disown(holder, run)
        elif run.holders == holder.bit and run.children is None:
            self._tree.truncate(holder, run, length)
        else:
            self._tree.split(run, length)
            self._disown(holder, run)

    def _disown(self, holder: Holder, run: Run) -> None:
        self._tree.disown(holder, run)
        if run.holders:
            children = run.children or ()
            self._tree.merge_up(run)
            if len(children) == 1:
                self._tree.merge_up(next(iter(children)))


def _position(run: Run, block_hash: int) -> int:
    if run.hashes[-1] == block_hash:
        return len(run.hashes) - 1
    return run.hashes.index(block_hash)


def _before(run: Run, block_hash: int) -> int | None:
    position = _position(run, block_hash)
    return run.hashes[position - 1] if position else run.before


def _num_equal_upwards(held: list[int], last: int, hashes: list[int], start: int) -> int:
    """How many of hashes[start:] are held[last], held[last - 1] and so on."""
    limit = min(last + 1, len(hashes) - start)
    upwards = held[last::-1]
    if upwards[:limit] == hashes[start : start + limit]:
        return limit
    return next(i for i in range(limit) if upwards[i] != hashes[start + i])


def _num_equal(left: list[int], left_start: int, right: list[int], right_start: int) -> int:
    limit = min(len(left) - left_start, len(right) - right_start)
    if left[left_start : left_start + limit] == right[right_start : right_start + limit]:
        return limit
    return next(i for i in range(limit) if left[left_start + i] != right[right_start + i])
