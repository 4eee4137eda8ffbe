"""How many KV blocks fit a budget, and how many sequences fit those blocks. Pure arithmetic.

Layers with the same attention window share a pool; a block of a pool holds `block_size` tokens of
all its layers. Memory is divided among pools by fixed shares: TensorRT-LLM makes them equal unless
TRTLLM_WINDOW_SIZE_SHARES says otherwise. Does not know weights or GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from controllers.model_shape import ModelShape, Split


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers of one pool. `window` None: they look back at everything. Bytes are of one GPU."""

    window: int | None
    num_layers: int
    bytes_per_token: int

    def blocks_of_sequence(self, length: int, block_size: int) -> int:
        """A window that does not start at a block's edge touches one block more than it fills."""
        full = math.ceil(length / block_size)
        if self.window is None:
            return full
        return min(full, math.ceil(self.window / block_size) + 1)


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """`num_blocks[i]` is the size of the pool of `groups[i]`; the largest window comes first."""

    groups: tuple[LayerGroup, ...]
    num_blocks: tuple[int, ...]
    block_size: int

    def num_sequences(self, length: int) -> int:
        """Sequences of `length` tokens that fit side by side and share nothing."""
        needed = [group.blocks_of_sequence(length, self.block_size) for group in self.groups]
        return min(have // need for have, need in zip(self.num_blocks, needed, strict=True))

    def sequence_bytes(self, length: int) -> int:
        return sum(
            group.blocks_of_sequence(length, self.block_size)
            * group.bytes_per_token
            * self.block_size
            for group in self.groups
        )


def group_layers(
    shape: ModelShape, dtype: str, split: Split, max_seq_len: int
) -> tuple[LayerGroup, ...]:
    """By window, largest first. A window that no sequence outgrows is none."""
    found: dict[int | None, list[int]] = {}
    for layer in shape.stage_layers(dtype, split):
        is_bounded = layer.window is not None and layer.window < max_seq_len
        size = layer.num_bytes_per_token(dtype, split.tensor)
        found.setdefault(layer.window if is_bounded else None, []).append(size)
    groups = [LayerGroup(window, len(sizes), sum(sizes)) for window, sizes in found.items()]
    return tuple(sorted(groups, key=lambda group: -(group.window or max_seq_len)))


def size_pools(
    groups: Sequence[LayerGroup], budget: int, block_size: int, shares: Sequence[float] | None
) -> PoolSizes:
    """`budget`: bytes of one GPU, or of the host memory that belongs to it.

    `shares`: one for each pool, the smallest window first, as TensorRT-LLM takes them; None: equal.
    """
    ascending = [1 / len(groups)] * len(groups) if shares is None else shares
    num_blocks = [
        int(max(0, budget) * share) // (group.bytes_per_token * block_size)
        for group, share in zip(groups, reversed(ascending), strict=True)
    ]
    return PoolSizes(tuple(groups), tuple(num_blocks), block_size)


def fitted_shares(groups: Sequence[LayerGroup], length: int, block_size: int) -> list[float] | None:
    """Shares with which sequences of `length` fill all pools together, the smallest window first.

    None for a single pool. Whole percents that add up to 1.
    """
    if len(groups) == 1:
        return None
    kept = [
        group.blocks_of_sequence(length, block_size) * group.bytes_per_token for group in groups
    ]
    rest = [max(1, round(100 * part / sum(kept))) for part in reversed(kept[1:])]
    return [percent / 100 for percent in (*rest, 100 - sum(rest))]


def longest_sequence(cache: PoolSizes, limit: int) -> int:
    """Tokens of the longest sequence that the pools hold: `limit`, or whole blocks below it."""
    if cache.num_sequences(limit) >= 1:
        return limit
    low, high = 0, limit // cache.block_size  # in blocks; low fits or is none, high + 1 does not
    while low < high:
        middle = (low + high + 1) // 2
        fits = cache.num_sequences(middle * cache.block_size) >= 1
        low, high = (middle, high) if fits else (low, middle - 1)
    return low * cache.block_size
