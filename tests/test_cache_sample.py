from __future__ import annotations

import random

import pytest

from controllers.cache_sample import BITS_PER_WORD, CacheSample, bits_of, shared_share
from controllers.events import hex_of


def hashes(num: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [hex_of(rng.getrandbits(64)) for _ in range(num)]


def sample_of(*groups: list[str]) -> CacheSample:
    sample = CacheSample(8000)
    for block_hash in [h for group in groups for h in group]:
        sample.add(block_hash)
    return sample


@pytest.mark.parametrize("num_shared", [0, 2000, 4000, 8000])
def test_the_shared_share_is_told_within_a_fifth(num_shared: int) -> None:
    shared = hashes(num_shared, 1)
    one = bits_of(sample_of(shared, hashes(8000 - num_shared, 2)).words())
    other = bits_of(sample_of(shared, hashes(8000 - num_shared, 3)).words())
    assert shared_share(one, other) == pytest.approx(num_shared / 8000, abs=0.2)


def test_words_are_exact_as_doubles() -> None:
    words = sample_of(hashes(100_000, 4)).words()
    assert all(word == int(word) < 2**BITS_PER_WORD for word in words)


def test_what_is_dropped_leaves_nothing() -> None:
    sample, blocks = CacheSample(8000), hashes(500, 5)
    for block_hash in blocks:
        sample.add(block_hash)
    for block_hash in blocks:
        sample.drop(block_hash)
    assert sample.words() == CacheSample(8000).words()


def test_empty_caches_share_nothing() -> None:
    empty, full = bits_of(CacheSample(8000).words()), bits_of(sample_of(hashes(8000, 6)).words())
    assert (shared_share(empty, full), shared_share(full, empty)) == (0.0, 0.0)
    assert bits_of(()) == empty == 0
