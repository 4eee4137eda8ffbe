"""Which blocks are kept by whom beside sequences. Counts pins; knows neither why nor how long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from serve_app.engine.block import Block


class Pins:
    """A pin is one more user of a block; the caller takes that user away again after `take`."""

    def __init__(self) -> None:
        self._id_to_block: dict[int, Block] = {}
        self._id_to_num_pins: Counter[int] = Counter()

    def add(self, blocks: Iterable[Block]) -> list[int]:
        """Pins blocks in use; their ids in order."""
        ids = []
        for block in blocks:
            block.ref_count += 1
            self._id_to_block[block.block_id] = block
            self._id_to_num_pins[block.block_id] += 1
            ids.append(block.block_id)
        return ids

    def take(self, block_ids: Iterable[int]) -> list[Block]:
        """Forgets one pin for each id, and returns the blocks, last first.

        Raises ValueError, and forgets nothing, if an id has not as many.
        """
        wanted = Counter(block_ids)
        for block_id, num in wanted.items():
            if num > self._id_to_num_pins[block_id]:
                raise ValueError(f"block {block_id} has {self._id_to_num_pins[block_id]} pins")
        blocks = [self._id_to_block[block_id] for block_id in wanted.elements()]
        self._id_to_num_pins -= wanted
        for block_id in wanted:
            if block_id not in self._id_to_num_pins:
                del self._id_to_block[block_id]
        return blocks[::-1]
