"""A few bits that tell how much two caches have in common, small enough to travel as four numbers.

A fixed share of all hashes, the same on every replica, is sampled; each sampled resident block sets
one of 192 bits. Hashes are hex strings. Knows nothing of what blocks are worth.
"""

from __future__ import annotations

from collections.abc import Sequence

BITS_PER_WORD = 48  # a double holds 53 bits exactly
NUM_WORDS = 4
NUM_BITS = BITS_PER_WORD * NUM_WORDS
SAMPLED_BLOCKS = 64  # of a full cache


class CacheSample:
    """`add` and `drop` blocks; `words` are the bits. `capacity` in blocks."""

    def __init__(self, capacity: int) -> None:
        self._step = max(1, capacity // SAMPLED_BLOCKS)
        self._counts = [0] * NUM_BITS

    def add(self, block_hash: str) -> None:
        self._change(block_hash, 1)

    def drop(self, block_hash: str) -> None:
        self._change(block_hash, -1)

    def clear(self) -> None:
        self._counts = [0] * NUM_BITS

    def words(self) -> tuple[float, ...]:
        return tuple(
            float(sum(1 << bit for bit in range(BITS_PER_WORD) if self._counts[first + bit] > 0))
            for first in range(0, NUM_BITS, BITS_PER_WORD)
        )

    def _change(self, block_hash: str, by: int) -> None:
        number = int(block_hash, 16)
        if number % self._step == 0:
            bit = (number // self._step) % NUM_BITS
            self._counts[bit] = max(0, self._counts[bit] + by)


def shared_share(own: int, theirs: int) -> float:
    """Estimated share of the first cache that the second one holds too, 0 to 1; see `bits_of`.

    Bits that agree by chance are taken out; without a sampled block nothing is known to be shared.
    """
    num_own = own.bit_count()
    if not num_own:
        return 0.0
    chance = theirs.bit_count() / NUM_BITS
    if chance >= 1.0:
        return 1.0
    seen = (own & theirs).bit_count() / num_own
    return max(0.0, (seen - chance) / (1.0 - chance))


def bits_of(words: Sequence[float]) -> int:
    """The words of a sample as one number."""
    bits = 0
    for word in reversed(words):
        bits = bits << BITS_PER_WORD | int(word) & (1 << BITS_PER_WORD) - 1
    return bits
