"""Causal attention of packed queries over a paged KV pool.

Owns: how a batch is cut into attention tasks and the arithmetic of one task.
Does not know: projections, rotary angles or who owns a block.

A row's result must not depend on how its prompt was cut, on its neighbours or on how far the block
tables of a task are padded. So every sum has an order fixed by the position in the context alone:
scores are one product over head_dim, the softmax denominator adds per block and then block after
block, and values are added in spans of VALUE_SPAN tokens. Masked entries add an exact zero, so
whole spans before a sliding window can be left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from serve_app.engine.batch import Batch, FloatArray, IntArray, KvPool

QUERY_TILE = 128
"""Query tokens of one prefill task: bounds the score matrix and skips most of the masked half."""
TASK_BLOCKS = 256
"""Blocks of all the sequences in one decode task, if there are several."""
VALUE_SPAN = 256
"""Below the depth at which OpenBLAS splits a product in two (320)."""


@dataclass(frozen=True, slots=True)
class AttentionTask:
    """Queries that are computed together: B sequences with Q query tokens each."""

    rows: IntArray
    """(B, Q) rows of the batch."""
    tables: IntArray
    """(B, blocks) padded block tables, from the first block that a query may look at."""
    bias: FloatArray
    """(B, 1, Q, 1, context) 0 where a query may look, -inf where not."""


def plan_attention(batch: Batch, block_size: int, window: int | None = None) -> list[AttentionTask]:
    """Cuts a batch into tasks: decodes of similar length together, prefills by query tile.

    `window`: tokens that a token attends to, itself included; None: all before it.
    """
    lens = np.diff(batch.query_starts)
    tasks = [
        _task(batch, group[:, None], batch.query_starts[group][:, None], block_size, window)
        for group in _similar_lengths(np.flatnonzero(lens == 1), batch.context_lens, block_size)
    ]
    for index in np.flatnonzero(lens > 1):
        start, end = batch.query_starts[index : index + 2].tolist()
        for first in range(start, end, QUERY_TILE):
            rows = np.arange(first, min(first + QUERY_TILE, end))
            tasks.append(_task(batch, np.array([[index]]), rows[None], block_size, window))
    return tasks


def _similar_lengths(
    indices: IntArray, context_lens: IntArray, block_size: int
) -> Iterator[IntArray]:
    """Groups whose block counts differ by less than a factor of two, so that padding stays
    bounded, and whose gathered blocks fit a cache."""
    num_blocks = -(-context_lens[indices] // block_size)
    classes = np.frexp(num_blocks)[1]
    for size_class in np.unique(classes):
        is_member = classes == size_class
        group_len = max(1, TASK_BLOCKS // int(num_blocks[is_member].max()))
        members = indices[is_member]
        for start in range(0, len(members), group_len):
            yield members[start : start + group_len]


def _task(
    batch: Batch, sequences: IntArray, rows: IntArray, block_size: int, window: int | None
) -> AttentionTask:
    positions = batch.positions[rows]
    end = int(positions.max()) // block_size + 1
    start = _first_block(int(positions.min()), block_size, window)
    context = np.arange(start * block_size, end * block_size)
    is_seen = context <= positions[..., None]
    if window is not None:
        is_seen &= context > positions[..., None] - window
    bias = np.where(is_seen, np.float32(0), np.float32(-np.inf))
    tables = batch.block_tables[sequences[:, 0], start:end]
    return AttentionTask(rows, tables, bias[:, None, :, None])


def _first_block(position: int, block_size: int, window: int | None) -> int:
    """The first block of a task; all before it are whole spans that no query sees."""
    if window is None or VALUE_SPAN % block_size:
        return 0
    return max(0, position - window + 1) // VALUE_SPAN * (VALUE_SPAN // block_size)


def attend(queries: FloatArray, tasks: list[AttentionTask], pool: KvPool, layer: int) -> FloatArray:
    """queries (T, heads, head_dim), already scaled, to attention output of the same shape."""
    out = np.empty_like(queries)
    keys, values = pool.keys[:, layer], pool.values[:, layer]
    for task in tasks:
        out[task.rows] = _attend_task(queries[task.rows], keys, values, task)
    return out


def _attend_task(
    queries: FloatArray, keys: FloatArray, values: FloatArray, task: AttentionTask
) -> FloatArray:
    """(B, Q, heads, head_dim) to the same shape."""
    num_kv_heads, head_dim = values.shape[-2:]
    batch, num_queries, num_heads, _ = queries.shape
    group = num_heads // num_kv_heads
    grouped = queries.reshape(batch, num_queries, num_kv_heads, group, head_dim)
    stacked = grouped.transpose(0, 2, 1, 3, 4).reshape(batch, num_kv_heads, -1, head_dim)
    if single := stacked.shape[2] == 1:
        stacked = np.repeat(stacked, 2, axis=2)
    weights = _scores(stacked, keys[task.tables])
    _softmax_in_place(weights, task.bias, values.shape[1])
    mixed = _mix(weights, values[task.tables])
    if single:
        mixed = mixed[:, :, :1]
    split = mixed.reshape(batch, num_kv_heads, num_queries, group, head_dim)
    ungrouped: FloatArray = split.transpose(0, 2, 1, 3, 4).reshape(queries.shape)
    return ungrouped


def _scores(queries: FloatArray, keys: FloatArray) -> FloatArray:
    """queries (B, kv_heads, R, head_dim), keys (B, blocks, kv_heads, head_dim, block) to
    (B, kv_heads, R, context)."""
    batch, num_blocks, num_kv_heads, _, block_size = keys.shape
    num_rows = queries.shape[2]
    scores = np.empty((batch, num_kv_heads, num_rows, num_blocks, block_size), np.float32)
    np.matmul(queries[:, None], keys, out=scores.transpose(0, 3, 1, 2, 4))
    return scores.reshape(batch, num_kv_heads, num_rows, -1)


def _softmax_in_place(scores: FloatArray, bias: FloatArray, block_size: int) -> None:
    batch, num_kv_heads, num_rows, context = scores.shape
    by_query = scores.reshape(batch, num_kv_heads, bias.shape[2], -1, context)
    by_query += bias
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    block_sums = scores.reshape(batch, num_kv_heads, num_rows, -1, block_size).sum(axis=-1)
    scores /= np.add.accumulate(block_sums, axis=-1)[..., -1:]


def _mix(weights: FloatArray, values: FloatArray) -> FloatArray:
    """weights (B, kv_heads, R, context), values (B, blocks, block, kv_heads, head_dim) to
    (B, kv_heads, R, head_dim)."""
    batch, _, _, num_kv_heads, head_dim = values.shape
    by_head = values.reshape(batch, -1, num_kv_heads, head_dim).transpose(0, 2, 1, 3)
    mixed: FloatArray = weights[..., :VALUE_SPAN] @ by_head[:, :, :VALUE_SPAN]
    for start in range(VALUE_SPAN, weights.shape[-1], VALUE_SPAN):
        span = slice(start, start + VALUE_SPAN)
        mixed += weights[..., span] @ by_head[:, :, span]
    return mixed
