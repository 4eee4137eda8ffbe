from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from serve_app.engine.attention import plan_attention
from serve_app.engine.batch import Batch, FloatArray, KvPool, SequenceSlice
from serve_app.engine.blas import limit_blas_threads
from serve_app.engine.linear import PackedLinear
from serve_app.engine.model_numpy import NumpyModel
from tests.tiny_llama import VOCAB, plain_logits, random_tensors, write_tiny_llama

BLOCK = 8
LONG = 300
"""Tokens of a prompt that spans several query tiles and value spans."""


@pytest.fixture
def model(tmp_path: Path) -> NumpyModel:
    return make_model(tmp_path)


def make_model(tmp_path: Path, *, kv_heads: int = 2, is_tied: bool = True) -> NumpyModel:
    limit_blas_threads(1)
    tensors = random_tensors(kv_heads=kv_heads, is_tied=is_tied)
    changes = {"llama.attention.head_count_kv": kv_heads}
    path = write_tiny_llama(tmp_path / "tiny.gguf", tensors, **changes)
    model = NumpyModel.load(path, block_size=BLOCK, num_blocks=200, num_host_blocks=2)
    # What a freed block still holds must not matter.
    model.pool.gpu[:] = np.random.default_rng(9).standard_normal(model.pool.gpu.shape)
    return model


def tokens(count: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, count).tolist()


def table(first: int, count: int = LONG) -> list[int]:
    """Scattered block ids; tables of different `first` (0-3) share none."""
    return [4 * i + first for i in range(-(-count // BLOCK))][::-1]


def step(model: NumpyModel, *slices: SequenceSlice) -> FloatArray:
    return model.forward(Batch.pack(slices, BLOCK)).copy()


def prefill(model: NumpyModel, ids: Sequence[int], blocks: list[int], *cuts: int) -> FloatArray:
    """Logits of the last token; `cuts` are positions at which a new step begins."""
    edges = [0, *cuts, len(ids)]
    logits = np.empty(0, np.float32)
    for start, end in zip(edges, edges[1:], strict=False):
        logits = step(model, SequenceSlice(ids[start:end], start, blocks))
    return logits[0]


def assert_same_choice(actual: FloatArray, expected: FloatArray) -> None:
    assert int(actual.argmax()) == int(expected.argmax())
    np.testing.assert_allclose(actual, expected, atol=2e-4)


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
@pytest.mark.parametrize("is_tied", [True, False])
def test_prefill_equals_plain_attention(kv_heads: int, is_tied: bool, tmp_path: Path) -> None:
    model = make_model(tmp_path, kv_heads=kv_heads, is_tied=is_tied)
    expected = plain_logits(random_tensors(kv_heads=kv_heads, is_tied=is_tied), tokens(LONG))
    actual = prefill(model, tokens(LONG), table(0))
    assert actual.shape == (VOCAB,)
    assert_same_choice(actual, expected[-1])


@pytest.mark.parametrize("cuts", [(8,), (7, 9, 10), (150, 151), tuple(range(1, LONG, 23))])
def test_chunked_prefill_equals_plain_attention(cuts: tuple[int, ...], model: NumpyModel) -> None:
    expected = plain_logits(random_tensors(), tokens(LONG))[-1]
    assert_same_choice(prefill(model, tokens(LONG), table(1), *cuts), expected)


def test_decoding_one_by_one_equals_plain_attention(model: NumpyModel) -> None:
    ids = tokens(40)
    expected = plain_logits(random_tensors(), ids)
    for position, token in enumerate(ids):
        logits = step(model, SequenceSlice([token], position, table(2)))[0]
        assert_same_choice(logits, expected[position])


def test_a_mixed_batch_equals_each_sequence_alone(model: NumpyModel) -> None:
    lengths = (LONG, 17, 64, 130)
    prompts = [tokens(n, seed) for seed, n in enumerate(lengths)]
    for first in (0, 1):
        prefill(model, prompts[first][:-1], table(first))
    logits = step(
        model,
        SequenceSlice(prompts[0][-1:], LONG - 1, table(0)),
        SequenceSlice(prompts[2], 0, table(2)),
        SequenceSlice(prompts[1][-1:], 16, table(1)),
        SequenceSlice(prompts[3][:100], 0, table(3), has_logits=False),
    )
    assert logits.shape == (3, VOCAB)
    for row, prompt in zip(logits, (prompts[0], prompts[2], prompts[1]), strict=True):
        assert_same_choice(row, plain_logits(random_tensors(), prompt)[-1])
    rest = step(model, SequenceSlice(prompts[3][100:], 100, table(3)))
    assert_same_choice(rest[0], plain_logits(random_tensors(), prompts[3])[-1])


def test_batched_decode_equals_plain_attention(model: NumpyModel) -> None:
    lengths = (3, 16, 90, LONG)
    prompts = [tokens(n, 20 + n) for n in lengths]
    for first, prompt in enumerate(prompts):
        prefill(model, prompt[:-1], table(first))
    logits = step(
        model,
        *(SequenceSlice(p[-1:], len(p) - 1, table(i)) for i, p in enumerate(prompts)),
    )
    for row, prompt in zip(logits, prompts, strict=True):
        assert_same_choice(row, plain_logits(random_tensors(), prompt)[-1])


def test_a_decode_batch_too_large_for_one_task(model: NumpyModel) -> None:
    """Eight sequences over one long shared prefix: more blocks than a task gathers."""
    ids, blocks = tokens(LONG), table(0)
    prefill(model, ids, blocks)
    tails = [199, 195, 191, 187, 183, 179, 175, 171]
    slices = []
    for index, block in enumerate(tails):
        model.pool.copy_tokens(blocks[LONG // BLOCK], block, BLOCK)
        own = [*blocks[: LONG // BLOCK], block]
        slices.append(SequenceSlice([index], LONG, own))
    assert len(plan_attention(Batch.pack(slices, BLOCK), BLOCK)) == 2
    for index, row in enumerate(step(model, *slices)):
        assert_same_choice(row, plain_logits(random_tensors(), [*ids, index])[-1])


def test_reused_blocks_give_the_logits_of_a_recomputation(model: NumpyModel) -> None:
    """A second prompt takes whole blocks of the first, and the head of one block by a copy."""
    first, second = tokens(50), tokens(50)[:29] + tokens(20, seed=8)
    prefill(model, first, table(0))
    blocks = table(0)[:3] + table(1)[3:]
    model.pool.copy_tokens(table(0)[3], table(1)[3], 5)
    logits = step(model, SequenceSlice(second[29:], 29, blocks))
    assert_same_choice(logits[0], plain_logits(random_tensors(), second)[-1])


def test_blocks_survive_the_host_tier(model: NumpyModel) -> None:
    ids, blocks = tokens(20), table(0)
    expected = prefill(model, ids, blocks)
    model.pool.offload(blocks[1], 1)
    model.pool.gpu[blocks[1]] = 7.0
    model.pool.onboard(1, 199)
    moved = [blocks[0], 199, *blocks[2:]]
    again = step(model, SequenceSlice(ids[-1:], len(ids) - 1, moved))[0]
    assert_same_choice(again, expected)


def test_logits_of_several_sequences_come_in_the_order_of_the_batch(model: NumpyModel) -> None:
    slices = [SequenceSlice(tokens(5, s), 0, table(s), has_logits=s != 1) for s in range(3)]
    logits = step(model, *slices)
    for row, seed in zip(logits, (0, 2), strict=True):
        assert_same_choice(row, plain_logits(random_tensors(), tokens(5, seed))[-1])
    quiet = [SequenceSlice(tokens(5), 0, table(0), has_logits=False)]
    assert step(model, *quiet).shape == (0, VOCAB)


def test_pack_lays_out_positions_slots_and_tables() -> None:
    batch = Batch.pack(
        [SequenceSlice([1, 2, 3], 7, [4, 2, 9]), SequenceSlice([5], 0, [3], False)], BLOCK
    )
    assert batch.token_ids.tolist() == [1, 2, 3, 5]
    assert batch.positions.tolist() == [7, 8, 9, 0]
    assert batch.slots.tolist() == [4 * 8 + 7, 2 * 8, 2 * 8 + 1, 3 * 8]
    assert batch.query_starts.tolist() == [0, 3, 4]
    assert batch.context_lens.tolist() == [10, 1]
    assert batch.block_tables.tolist() == [[4, 2], [3, 0]]
    assert batch.logit_rows.tolist() == [2]
    assert (batch.num_tokens, batch.num_sequences) == (4, 2)


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        ([], "at least one sequence"),
        ([SequenceSlice([], 0, [1])], "at least one token"),
        ([SequenceSlice([1], 8, [1])], r"block table \[1\] is shorter than 2"),
    ],
)
def test_pack_refuses_what_cannot_run(slices: list[SequenceSlice], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Batch.pack(slices, BLOCK)


def test_pool_copies() -> None:
    pool = KvPool(
        num_layers=2, num_kv_heads=2, head_dim=4, block_size=BLOCK, num_blocks=3, num_host_blocks=1
    )
    pool.gpu[0] = np.random.default_rng(0).standard_normal(pool.gpu.shape[1:])
    before = pool.gpu[0].copy()
    pool.copy_tokens(0, 1, BLOCK)
    pool.copy_tokens(0, 2, 3)
    np.testing.assert_array_equal(pool.gpu[:2], [before, before])
    np.testing.assert_array_equal(pool.keys[2, ..., :3], pool.keys[0, ..., :3])
    np.testing.assert_array_equal(pool.values[2, :, :3], pool.values[0, :, :3])
    assert not pool.keys[2, ..., 3:].any()
    assert not pool.values[2, :, 3:].any()


def test_blas_threads_are_limited() -> None:
    limit_blas_threads(1)
    blas = [lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"]
    assert set(blas) == {1}


@pytest.mark.parametrize("shape", [(70, 40), (64, 1500), (5, 3000)])
@pytest.mark.parametrize("num_rows", [1, 2, 19, 100])
def test_packed_linear_is_a_matrix_product(shape: tuple[int, int], num_rows: int) -> None:
    rng = np.random.default_rng(3)
    weight = rng.standard_normal(shape, np.float32)
    x = rng.standard_normal((num_rows, shape[1]), np.float32)
    linear = PackedLinear(weight)
    np.testing.assert_allclose(linear(x), x @ weight.T, rtol=0, atol=1e-3)
    np.testing.assert_array_equal(linear.rows(np.array([0, 4])), weight[[0, 4]])
