"""Prompts and routing tables by whole trace blocks, looking like blocks to placement.

A trace block is cached and dropped as a whole, so a table that knows the first block of each knows
all of them; blocks in between need not be stored, told or looked up one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from controllers.placement_types import WorkerView
from controllers.routing_table import RoutingTable
from controllers.worker_state import Overlap


class PromptBlocks(list[int]):
    """Block hashes of a prompt's full blocks."""

    def __init__(self, trace_blocks: Sequence[int], num_blocks: int, per: int) -> None:
        """`per`: blocks of a trace block. The last trace block may have fewer."""
        starts = [number * per for number in trace_blocks]
        super().__init__(chain.from_iterable([range(start, start + per) for start in starts]))
        del self[num_blocks:]
        self._per = per

    def first_of_each(self) -> list[int]:
        """Of every trace block; what a `PrefixTable` knows them by."""
        return self[:: self._per]


class PrefixTable:
    """A TableView in blocks of a RoutingTable in trace blocks."""

    def __init__(self, table: RoutingTable, block_size: int) -> None:
        self.table = table
        self.block_size = block_size
        self._per = table.block_size // block_size

    @property
    def workers(self) -> Mapping[str, WorkerView]:
        return self.table.workers

    def overlap(self, hashes: Sequence[int]) -> dict[str, Overlap]:
        """`hashes` as PromptBlocks, or the first of them."""
        found = self.table.overlap(hashes[:: self._per])
        known = {each: self._in_blocks(each, len(hashes)) for each in set(found.values())}
        return {worker: known[each] for worker, each in found.items()}

    def is_stale(self, worker: str) -> bool:
        return self.table.is_stale(worker)

    def _in_blocks(self, known: Overlap, most: int) -> Overlap:
        num_blocks = min(known.num_blocks * self._per, most)
        if known.num_gpu == known.num_blocks:
            return Overlap(num_blocks, num_blocks, 0, 0)
        num_host = min(known.num_host * self._per, num_blocks)
        return Overlap(num_blocks, num_blocks - num_host, num_host, 0)
