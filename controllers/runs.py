"""What the prefix tree is made of: runs of blocks, holders, block classes.

Plain data. `run_tree` keeps it consistent and says what the rules are.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple


class BlockClass(NamedTuple):
    """What accounting distinguishes."""

    medium: str
    retention_priority: int
    tier: str


class Run:
    """Consecutive blocks with the same holders; `before` is the hash of the block before them."""

    __slots__ = ("attached", "before", "children", "hashes", "holders", "off_gpu", "parent")

    def __init__(self, hashes: list[int], before: int | None, parent: Run | None) -> None:
        self.hashes = hashes
        self.before = before
        self.parent = parent  # None: first of a prompt, or nobody holds `before`
        self.children: set[Run] | None = None
        self.holders = 0  # bit mask
        self.attached = 0  # those holders that hold every block before it too
        self.off_gpu = 0  # those holders that have some of its blocks on another medium


class Holder:
    """What one worker holds: its runs with the class of each block, and the number by class."""

    __slots__ = ("bit", "class_to_num", "num_blocks", "runs")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.runs: dict[Run, list[BlockClass]] = {}
        self.class_to_num: dict[BlockClass, int] = {}
        self.num_blocks = 0

    def count(self, classes: list[BlockClass], sign: int) -> None:
        """Count blocks in (sign 1) or out (-1)."""
        self.num_blocks += sign * len(classes)
        first = classes[0]
        if classes.count(first) == len(classes):
            self._count_class(first, sign * len(classes))
        else:
            for block_class, num in Counter(classes).items():
                self._count_class(block_class, sign * num)

    def _count_class(self, block_class: BlockClass, num: int) -> None:
        total = self.class_to_num.get(block_class, 0) + num
        if total:
            self.class_to_num[block_class] = total
        else:
            self.class_to_num.pop(block_class, None)
