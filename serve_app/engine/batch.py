"""What one forward pass is asked to do, and where keys and values live.

Owns: the packed description of a step (`Batch`) and the block pools in memory (`KvPool`).
Does not know: which block belongs to whom, why it is kept, or how a model computes.

The seam between scheduler and model is one call: `model.forward(batch) -> logits`. Every model
(NumPy on a CPU, another backend on a GPU) takes the same `Batch` and owns one pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]


class SequenceSlice(NamedTuple):
    """The tokens of one sequence that this step computes.

    `token_ids` are the new tokens only; `start` is the position of the first of them (= tokens
    whose KV is already in the blocks); `block_table` lists the sequence's block ids in order and
    must cover at least `start + len(token_ids)` tokens. `has_logits` asks for the logits of the
    last of the tokens (False for a prefill chunk that does not end the prompt).
    """

    token_ids: Sequence[int] | NDArray[np.integer[Any]]
    start: int
    block_table: Sequence[int]
    has_logits: bool = True


@dataclass(frozen=True, slots=True)
class Batch:
    """One step over S sequences and T packed tokens; R of the T rows get logits.

    Tokens of one sequence are adjacent and in order; a sequence may have one token (decode) or
    many (prefill chunk). The model writes the KV of row t to slot `slots[t]` before it attends,
    so a row sees positions 0 .. positions[t] of its own sequence.
    """

    token_ids: IntArray
    """(T,) token ids."""
    positions: IntArray
    """(T,) position of each token in its sequence, from 0."""
    slots: IntArray
    """(T,) block_id * block_size + offset: where the token's KV is written."""
    query_starts: IntArray
    """(S + 1,) sequence s owns rows query_starts[s] .. query_starts[s + 1]."""
    context_lens: IntArray
    """(S,) tokens of the sequence after this step, cached ones included."""
    block_tables: IntArray
    """(S, max blocks) block ids in order; unused entries are 0 and never attended to."""
    logit_rows: IntArray
    """(R,) rows whose logits are wanted, in the order of the sequences that asked."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        return len(self.context_lens)

    @classmethod
    def pack(cls, slices: Iterable[SequenceSlice], block_size: int) -> Batch:
        """Packs slices in the given order.

        Raises ValueError when a slice is empty or its block table is too short: the scheduler
        owns both, so either is a bug there.
        """
        parts = list(slices)
        lens = [len(part.token_ids) for part in parts]
        contexts = np.array([part.start + n for part, n in zip(parts, lens, strict=True)], np.int64)
        tables = _padded_tables(parts, contexts, lens, block_size)
        starts = np.concatenate(([0], np.cumsum(lens))).astype(np.int64)
        owners = np.repeat(np.arange(len(parts)), lens)
        first = np.array([part.start for part in parts], np.int64)
        positions = np.arange(starts[-1]) - starts[owners] + first[owners]
        blocks = tables[owners, positions // block_size]
        wants = np.array([part.has_logits for part in parts], bool)
        return cls(
            token_ids=np.concatenate([np.asarray(p.token_ids, np.int64) for p in parts]),
            positions=positions,
            slots=blocks * block_size + positions % block_size,
            query_starts=starts,
            context_lens=contexts,
            block_tables=tables,
            logit_rows=(starts[1:] - 1)[wants],
        )


def _padded_tables(
    parts: list[SequenceSlice], contexts: IntArray, lens: list[int], block_size: int
) -> IntArray:
    if not parts or min(lens) == 0:
        raise ValueError("a batch needs at least one sequence, and each at least one token")
    num_blocks = -(-contexts // block_size)
    tables = np.zeros((len(parts), int(num_blocks.max())), np.int64)
    for row, part, needed in zip(tables, parts, num_blocks.tolist(), strict=True):
        if len(part.block_table) < needed:
            raise ValueError(f"block table {list(part.block_table)} is shorter than {needed}")
        row[:needed] = part.block_table[:needed]
    return tables


class KvPool:
    """Keys and values of every block: one pool the model attends to, one on the host tier.

    `gpu` is the primary pool (the one a model reads and writes, whatever the machine) and `host`
    the second tier. Both are float32 arrays (blocks, layers, 2, floats of a block), so a block is
    one contiguous piece and moving it is one memcpy. A model sees them as `keys` and `values`.
    Memory is zeroed and only backed by the system when first touched. Block ids are not checked.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        block_size: int,
        num_blocks: int,
        num_host_blocks: int = 0,
    ) -> None:
        shape = (num_layers, 2, block_size * num_kv_heads * head_dim)
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.gpu: FloatArray = np.zeros((num_blocks, *shape), np.float32)
        self.host: FloatArray = np.zeros((num_host_blocks, *shape), np.float32)
        self.keys: FloatArray = self.gpu[:, :, 0].reshape(
            num_blocks, num_layers, num_kv_heads, head_dim, block_size
        )
        """(blocks, layers, kv_heads, head_dim, block_size): ready to be multiplied by queries."""
        self.values: FloatArray = self.gpu[:, :, 1].reshape(
            num_blocks, num_layers, block_size, num_kv_heads, head_dim
        )
        """(blocks, layers, block_size, kv_heads, head_dim)."""

    def copy_tokens(self, source: int, target: int, num_tokens: int) -> None:
        """Copies the first `num_tokens` tokens of a block (all layers) inside the primary pool."""
        self.keys[target, ..., :num_tokens] = self.keys[source, ..., :num_tokens]
        self.values[target, :, :num_tokens] = self.values[source, :, :num_tokens]

    def offload(self, block: int, host_block: int) -> None:
        """Copies primary block `block` to `host_block`; the source stays as it is."""
        self.host[host_block] = self.gpu[block]

    def onboard(self, host_block: int, block: int) -> None:
        """Copies `host_block` to primary block `block`; the source stays as it is."""
        self.gpu[block] = self.host[host_block]


class Model(Protocol):
    """What the engine needs of a model."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_seq_len(self) -> int: ...

    @property
    def attention_window(self) -> int | None:
        """Tokens that a token attends to, itself included; None: all before it. What lies behind
        the window may be overwritten."""
        ...

    @property
    def pool(self) -> KvPool:
        """The pool this model reads and writes; the block manager copies blocks in it."""
        ...

    def forward(self, batch: Batch) -> FloatArray:
        """Writes the KV of the batch's tokens and returns logits (R, vocab), float32.

        Blocks until done; not thread-safe; rows are in the order of `batch.logit_rows`. The
        result belongs to the caller until the next call. Greedy tokens do not depend on how a
        prompt is cut into steps, on what else is in the batch, or on whether a prefix was reused.
        """
        ...
