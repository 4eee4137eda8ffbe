"""Prompts and routing tables by whole trace blocks, looking like blocks to placement.

A trace block is cached and dropped as a whole, so a table that knows the first block of each knows
all of them; blocks in between need not be stored, told or looked up one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controllers.placement_types import WorkerView
from controllers.routing_table import RoutingTable
from controllers.worker_state import Overlap

NONE = Overlap(0, 0, 0, 0)


class PromptBlocks(list[int]):
    """Block hashes of a prompt's full blocks."""

    def __init__(self, trace_blocks: Sequence[int], num_blocks: int, per: int) -> None:
        """`per`: blocks of a trace block. The last trace block may have fewer."""
        super().__init__()
        start = end = 0
        for number in trace_blocks:  # in a row where they came with one prompt
            if number * per != end:
                self.extend(range(start, end))
                start = number * per
            end = number * per + per
        self.extend(range(start, end))
        del self[num_blocks:]
        self._per = per

    def first_of_each(self) -> list[int]:
        """Of every trace block; what a `PrefixTable` knows them by."""
        return self[:: self._per]


class PrefixTable:
    """A TableView in blocks of a RoutingTable in trace blocks."""

    def __init__(self, table: RoutingTable, block_size: int) -> None:
        self.table = table
        self.workers: Mapping[str, WorkerView] = table.workers
        self.block_size = block_size
        self._per = table.block_size // block_size

    def overlap(self, hashes: Sequence[int]) -> dict[str, Overlap]:
        """`hashes` as PromptBlocks, or the first of them."""
        found = self.table.overlap(hashes[:: self._per])
        before, in_blocks = NONE, NONE
        for worker, known in found.items():
            if known is not before:  # workers that hold equally much share one, in a row
                before, in_blocks = known, self._in_blocks(known, len(hashes))
            found[worker] = in_blocks
        return found

    def is_stale(self, worker: str) -> bool:
        return self.table.is_stale(worker)

    def _in_blocks(self, known: Overlap, most: int) -> Overlap:
        num_blocks = min(known.num_blocks * self._per, most)
        if known.num_gpu == known.num_blocks:
            return Overlap(num_blocks, num_blocks, 0, 0)
        num_host = min(known.num_host * self._per, num_blocks)
        return Overlap(num_blocks, num_blocks - num_host, num_host, 0)
