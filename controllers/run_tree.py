"""The prefix tree as runs of blocks, and the surgery that keeps it right.

Owns how runs hang together and who holds them. Knows no events, epochs or worker names: a
worker is a `Holder` with one bit.

1. A run is a chain of consecutive blocks held by the same workers; it has at least one holder.
   Long runs keep the cost per block small: one dict entry and two list slots, no object.
2. A hash names a whole prefix, so the block before it is the same on every worker: one tree.
3. Children hang on the last block of a run, and a run object goes with its last block: splitting
   makes a new object for the head, merging keeps the child's. So children keep their parents.
4. A block is attached on a worker that holds every block before it too. Only attached blocks count.
5. A run whose predecessor nobody holds waits for it, attached on nobody.
"""

from __future__ import annotations

from collections.abc import Iterator

from controllers.runs import BlockClass, Holder, Run

MAX_RUN = 64  # blocks; bounds the cost of a split
# Splitting and joining cost a step per holder. A prefix that many hold stays split where one of
# them once stored or dropped a part: the others mostly do so at the same places.
MAX_JOINED_HOLDERS = 8


class RunTree:
    """Runs by hash; every method keeps the rules above."""

    def __init__(self) -> None:
        self.run_of: dict[int, Run] = {}
        self.waiting: dict[int, set[Run]] = {}  # hash that nobody holds -> runs after it
        self.holders: list[Holder | None] = []  # by bit position
        self.off_gpu = 0  # holders that have had a block on another medium since emptied

    def holders_in(self, mask: int) -> Iterator[Holder]:
        """Holders of the bits of `mask`."""
        while mask:
            bit = mask & -mask
            mask ^= bit
            holder = self.holders[bit.bit_length() - 1]
            if holder is not None:
                yield holder

    def add(
        self, holder: Holder, before: int | None, hashes: list[int], classes: list[BlockClass]
    ) -> None:
        """Blocks that nobody holds, at most MAX_RUN; only the last one may be waited for."""
        parent = self._run_ending_at(before)
        if (
            parent is not None
            and parent.holders == holder.bit
            and parent.children is None
            and len(parent.hashes) + len(hashes) <= MAX_RUN
        ):
            run = parent
            run.hashes += hashes
            holder.runs[run] += classes
            holder.count(classes, 1)
            if not _is_on_gpu(classes):
                self._note_media(run, holder)
        else:
            run = Run(hashes.copy(), before, parent)
            self._hang(run)
            self.own(holder, run, classes.copy())
        self._point_to(run, hashes)
        if hashes[-1] in self.waiting:
            self._adopt(run)

    def own(self, holder: Holder, run: Run, classes: list[BlockClass]) -> None:
        """The worker now holds all of the run too; `classes` is kept, not copied."""
        holder.runs[run] = classes
        holder.count(classes, 1)
        run.holders |= holder.bit
        if not _is_on_gpu(classes):
            self._note_media(run, holder)
        if run.before is None or (run.parent is not None and run.parent.attached & holder.bit):
            self._attach(run, holder.bit)

    def disown(self, holder: Holder, run: Run) -> None:
        """The worker no longer holds the run; it holds nothing after it either."""
        holder.count(holder.runs.pop(run), -1)
        run.holders &= ~holder.bit
        run.attached &= ~holder.bit
        run.off_gpu &= ~holder.bit
        if not run.holders:
            for block_hash in run.hashes:
                del self.run_of[block_hash]
            self._unhang(run)
            self._strand_children(run)

    def truncate(self, holder: Holder, run: Run, length: int) -> None:
        """Drop the blocks after the first `length` of a run without children and other holders."""
        for block_hash in run.hashes[length:]:
            del self.run_of[block_hash]
        del run.hashes[length:]
        classes = holder.runs[run]
        holder.count(classes[length:], -1)
        del classes[length:]
        if run.off_gpu & holder.bit:
            self._note_media(run, holder)

    def reclassify(self, holder: Holder, run: Run, start: int, classes: list[BlockClass]) -> None:
        """New classes for the blocks from `start` on."""
        held = holder.runs[run]
        end = start + len(classes)
        if held[start:end] != classes:
            holder.count(held[start:end], -1)
            held[start:end] = classes
            holder.count(classes, 1)
            self._note_media(run, holder)

    def split(self, run: Run, length: int) -> Run:
        """Make the first `length` blocks a run of their own; returns it. `run` keeps the rest."""
        head = Run(run.hashes[:length], run.before, run.parent)
        self._unhang(run)
        self._hang(head)
        run.hashes = run.hashes[length:]
        run.before = head.hashes[-1]
        run.parent = head
        head.children = {run}
        head.holders = run.holders
        head.attached = run.attached
        for holder in self.holders_in(run.holders):
            classes = holder.runs[run]
            holder.runs[head] = classes[:length]
            holder.runs[run] = classes[length:]
        for holder in self.holders_in(run.off_gpu):
            self._note_media(head, holder)
            self._note_media(run, holder)
        self._point_to(head, head.hashes)
        return head

    def merge_up(self, run: Run) -> None:
        """Join the run with the one before it, if that leaves one run that keeps the rules."""
        head = run.parent
        if (
            head is None
            or head.holders != run.holders
            or len(head.children or ()) != 1
            or len(head.hashes) + len(run.hashes) > MAX_RUN
            or run.holders.bit_count() > MAX_JOINED_HOLDERS
        ):
            return
        run.hashes = head.hashes + run.hashes
        self._point_to(run, head.hashes)
        self._unhang(head)
        run.before = head.before
        run.parent = head.parent
        run.off_gpu |= head.off_gpu
        for holder in self.holders_in(run.holders):
            holder.runs[run] = holder.runs.pop(head) + holder.runs[run]
        self._hang(run)

    def _point_to(self, run: Run, hashes: list[int]) -> None:
        run_of = self.run_of
        for block_hash in hashes:  # twice as fast as update(dict.fromkeys(...))
            run_of[block_hash] = run

    def _run_ending_at(self, block_hash: int | None) -> Run | None:
        if block_hash is None:
            return None
        run = self.run_of.get(block_hash)
        if run is None or run.hashes[-1] == block_hash:
            return run
        return self.split(run, 1 + run.hashes.index(block_hash))

    def _hang(self, run: Run) -> None:
        if run.parent is None:
            if run.before is not None:
                self.waiting.setdefault(run.before, set()).add(run)
        elif run.parent.children is None:
            run.parent.children = {run}
        else:
            run.parent.children.add(run)

    def _unhang(self, run: Run) -> None:
        if run.parent is not None and run.parent.children is not None:
            run.parent.children.discard(run)
            run.parent.children = run.parent.children or None
        elif run.before in self.waiting:
            self.waiting[run.before].discard(run)
            if not self.waiting[run.before]:
                del self.waiting[run.before]

    def _strand_children(self, run: Run) -> None:
        for child in run.children or ():
            child.parent = None
            self._hang(child)
        run.children = None

    def _adopt(self, run: Run) -> None:
        """Hang the runs that waited for the last block of `run` on it."""
        for child in list(self.waiting[run.hashes[-1]]):
            if not self._is_at_or_above(child, run):
                self._unhang(child)
                child.parent = run
                self._hang(child)
                self._attach(child, run.attached & child.holders)

    def _is_at_or_above(self, run: Run, other: Run | None) -> bool:
        while other is not None and other is not run:
            other = other.parent
        return other is run

    def _attach(self, run: Run, mask: int) -> None:
        todo = [(run, mask)]
        while todo:
            run, mask = todo.pop()
            run.attached |= mask
            for child in run.children or ():
                if mask & child.holders:
                    todo.append((child, mask & child.holders))

    def _note_media(self, run: Run, holder: Holder) -> None:
        if _is_on_gpu(holder.runs[run]):
            run.off_gpu &= ~holder.bit
        else:
            run.off_gpu |= holder.bit
            self.off_gpu |= holder.bit


def _is_on_gpu(classes: list[BlockClass]) -> bool:
    first = classes[0]
    if first.medium == "gpu" and classes.count(first) == len(classes):
        return True  # the usual case, ten times as fast
    return all(block_class.medium == "gpu" for block_class in classes)
