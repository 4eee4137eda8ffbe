from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from controllers.blocks import (
    HASH_SCHEME,
    as_token_array,
    block_hash,
    block_hashes,
    num_common_blocks,
    salt_of,
)
from controllers.errors import InvalidRequest, SettingsError

TOKENS = np.arange(12, dtype=np.uint32)
ROOT = Path(__file__).parents[1]

VECTORS = [11660027832386793900, 2615516339191896381, 11813949576292976408]
SALT = 9222057748113318535
SALTED = [2413835606092187437, 13685361388664899430, 7643798505131734282]
PARTIAL = 17856881380917102865
LONG = [6784862038138408340, 1136494444916631979]


def test_vectors_of_the_scheme():
    # A change of any of these is a new scheme: change HASH_SCHEME with it.
    assert HASH_SCHEME == "cachelane-xxh3-1"
    assert block_hashes(TOKENS, 4) == VECTORS
    assert block_hashes(TOKENS, 4, salt=salt_of("acme")) == SALTED
    assert salt_of("acme") == SALT
    assert block_hash(None, TOKENS[:3]) == PARTIAL
    assert block_hashes(np.arange(64, dtype=np.uint32) + 128_000, 32) == LONG


def test_hashes_do_not_depend_on_the_process():
    # vllm #25210: hashes seeded per process never match across replicas.
    program = (
        "import json, numpy as np; from controllers.blocks import block_hashes, salt_of;"
        "print(json.dumps(block_hashes(np.arange(12), 4, salt_of('acme'))))"
    )
    for seed in ("0", "1", "random"):
        run = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        )
        assert json.loads(run.stdout) == SALTED


def test_a_hash_covers_everything_before_it():
    changed = TOKENS.copy()
    changed[0] = 99
    assert set(block_hashes(changed, 4)).isdisjoint(block_hashes(TOKENS, 4))


def test_only_full_blocks_are_hashed():
    assert block_hashes(TOKENS[:3], 4) == []
    assert block_hashes(TOKENS[:11], 4) == block_hashes(TOKENS, 4)[:2]
    assert block_hashes(TOKENS[:0], 4) == []


def test_one_block_at_a_time_gives_the_same_hashes():
    parent = None
    one_by_one = []
    for start in range(0, 12, 4):
        parent = block_hash(parent, TOKENS[start : start + 4], salt=7)
        one_by_one.append(parent)
    assert one_by_one == block_hashes(TOKENS, 4, salt=7)


def test_a_prefix_can_be_continued():
    whole = block_hashes(TOKENS, 4, salt=7)
    assert block_hashes(TOKENS[4:], 4, parent=whole[0]) == whole[1:]


def test_partial_blocks_differ_from_full_ones_and_from_padding():
    hashes = [block_hash(5, np.zeros(n, dtype=np.uint32)) for n in range(1, 130)]
    assert len(set(hashes)) == len(hashes)


def test_salts_keep_tenants_apart():
    by_salt = [block_hashes(TOKENS, 4, salt_of(name)) for name in (None, "", "a", "b", "A")]
    assert len({h for hashes in by_salt for h in hashes}) == 15
    assert salt_of(None) == 0
    assert salt_of("") != 0


def test_layout_of_the_array_does_not_matter():
    wide = np.stack([TOKENS, TOKENS], axis=1)[:, 0]
    assert not wide.flags.c_contiguous
    for same in (wide, TOKENS.astype(">u4"), TOKENS.astype(np.int64)):
        assert block_hashes(same, 4) == VECTORS
        assert block_hash(None, same[:4]) == VECTORS[0]


@pytest.mark.parametrize("block_size", [0, -1])
def test_block_size_must_be_positive(block_size):
    with pytest.raises(SettingsError, match=f"block_size is {block_size}, must be at least 1"):
        block_hashes(TOKENS, block_size)


def test_an_empty_block_has_no_hash():
    with pytest.raises(InvalidRequest, match="a block has at least one token"):
        block_hash(None, TOKENS[:0])


@pytest.mark.parametrize(
    "tokens",
    [
        list(range(12)),
        tuple(range(12)),
        TOKENS,
        TOKENS.astype(np.int64),
        TOKENS.astype(">u4"),
        TOKENS.astype("<u4").tobytes(),
    ],
)
def test_every_way_to_give_tokens(tokens):
    array = as_token_array(tokens)
    assert array.dtype == np.dtype("<u4")
    assert array.tolist() == list(range(12))


def test_no_tokens_are_an_empty_array():
    for tokens in ([], (), b"", np.array([])):
        assert as_token_array(tokens).tolist() == []


def test_the_largest_token_id():
    assert as_token_array([2**32 - 1]).tolist() == [2**32 - 1]


@pytest.mark.parametrize(
    ("tokens", "field", "message"),
    [
        ([5, -1], "prompt[1]", "token id -1 is out of range 0 ... 4294967295"),
        ([2**32], "prompt[0]", "token id 4294967296 is out of range 0 ... 4294967295"),
        ([0, 2**70], "prompt[1]", f"token id {2**70} is out of range 0 ... 4294967295"),
        ([1, 1.5], "prompt[1]", "1.5 is not an integer token id"),
        ([1, "a"], "prompt[1]", "'a' is not an integer token id"),
        ([1, None], "prompt[1]", "None is not an integer token id"),
        ([[1]], "prompt[0]", "[1] is not an integer token id"),
        ("ab", "prompt[0]", "'a' is not an integer token id"),
        (5, "prompt", "int is not a sequence of token ids"),
        (b"abc", "prompt", "3 bytes are not whole 32-bit token ids"),
        (np.array([3, -1]), "prompt[1]", "token id -1 is out of range 0 ... 4294967295"),
        (np.array([2**40]), "prompt[0]", f"token id {2**40} is out of range 0 ... 4294967295"),
        (np.array([1.0]), "prompt", "token ids are float64, must be integers"),
        (np.array([[1]]), "prompt", "token ids have shape (1, 1), must be one-dimensional"),
    ],
)
def test_a_bad_token_is_named(tokens, field, message):
    with pytest.raises(InvalidRequest) as raised:
        as_token_array(tokens)
    assert (raised.value.field, raised.value.message) == (field, message)


def test_the_field_can_be_named():
    with pytest.raises(InvalidRequest, match=r"^input\[0\]: token id -1"):
        as_token_array([-1], field="input")


def test_no_collisions_among_structured_and_random_blocks():
    count = np.arange(1, 100_001, dtype=np.uint32)
    first, last = np.zeros((2, len(count), 4), dtype=np.uint32)
    first[:, 0] = count
    last[:, 3] = count
    single_bits = np.array(
        [[1 << (bit % 32) if word == bit // 32 else 0 for word in range(4)] for bit in range(128)],
        dtype=np.uint32,
    )
    random = np.random.default_rng(1).integers(0, 150_000, (200_000, 4), dtype=np.uint32)
    blocks = np.unique(np.concatenate([first, last, single_bits, random]), axis=0)

    chained = block_hashes(blocks.reshape(-1), 4)
    siblings = [block_hash(99, block) for block in blocks[::8]]

    assert len(set(chained)) == len(blocks)
    assert len(set(siblings)) == len(siblings)
    share_of_ones = np.unpackbits(np.array(chained, dtype=np.uint64).view(np.uint8)).mean()
    assert abs(share_of_ones - 0.5) < 1e-3


@pytest.mark.parametrize("num", range(8))
def test_common_blocks_are_found_wherever_prompts_part(num: int) -> None:
    one, other = list(range(7)), [*range(num), *range(90, 97)]
    assert num_common_blocks(one, other) == num_common_blocks(other, one) == min(num, 7)
    assert num_common_blocks(one, one[:num]) == num_common_blocks(one[:num], one) == min(num, 7)
    assert num_common_blocks(one[3:], other, 3) == max(0, min(num, 7) - 3)
