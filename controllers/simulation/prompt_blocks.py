"""Prompts and routing tables by whole trace blocks, looking like blocks to placement.

A trace block is cached and dropped as a whole, so a table that knows the first block of each knows
all of them; blocks in between need not be stored, told or looked up one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

from controllers.placement_types import WorkerView
from controllers.routing_table import RoutingTable
from controllers.worker_state import Overlap


class PromptBlocks(Sequence[int]):
    """Block hashes of a prompt's full blocks, made when they are asked for."""

    def __init__(self, trace_blocks: Sequence[int], num_blocks: int, per: int) -> None:
        """`per`: blocks of a trace block. The last trace block may have fewer."""
        self._trace_blocks = trace_blocks
        self._num_blocks = num_blocks
        self._per = per

    def __len__(self) -> int:
        return self._num_blocks

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        if isinstance(at, slice):
            return self._slice(*at.indices(self._num_blocks))
        index = at + self._num_blocks if at < 0 else at
        if not 0 <= index < self._num_blocks:
            raise IndexError(f"block {at} of {self._num_blocks}")
        return self._trace_blocks[index // self._per] * self._per + index % self._per

    def first_of_each(self) -> list[int]:
        """Of every trace block; what a `PrefixTable` knows them by."""
        per = self._per
        return [trace_block * per for trace_block in self._trace_blocks]

    def _slice(self, start: int, stop: int, step: int) -> list[int]:
        if step != 1 or start >= stop:
            return [self[index] for index in range(start, stop, step)]
        per = self._per
        first = start // per
        of_each = (number * per for number in self._trace_blocks[first : (stop - 1) // per + 1])
        every = [block for begin in of_each for block in range(begin, begin + per)]
        return every[start - first * per : stop - first * per]


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
        """`hashes` are those of a PromptBlocks, or the first of them."""
        if isinstance(hashes, PromptBlocks):
            found = self.table.overlap(hashes.first_of_each())
        else:
            found = self.table.overlap(hashes[:: self._per])
        return {worker: self._in_blocks(known, len(hashes)) for worker, known in found.items()}

    def is_stale(self, worker: str) -> bool:
        return self.table.is_stale(worker)

    def _in_blocks(self, known: Overlap, most: int) -> Overlap:
        num_blocks = min(known.num_blocks * self._per, most)
        if known.num_gpu == known.num_blocks:
            return Overlap(num_blocks, num_blocks, 0, 0)
        num_host = min(known.num_host * self._per, num_blocks)
        return Overlap(num_blocks, num_blocks - num_host, num_host, 0)
