"""What new blocks cost on a worker whose cache is smaller than others': it must evict sooner.

Owns the share of sent blocks that were sent before and lost since, from a sample of prefixes. Knows
neither workers nor their events: in a full cache every new block evicts one. `now` is in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

EVERY = 32  # blocks of a prompt for each one that is remembered
MAX_REMEMBERED = 1 << 16  # the least recently asked for are forgotten
WINDOW_S = 300.0  # memory of the share
MIN_BLOCKS = 2000.0  # below so many new blocks in that time nothing is said


class Evictions:
    """All counts are in blocks."""

    def __init__(self) -> None:
        self._remembered: dict[int, None] = {}  # oldest first
        self._num_new = 0.0
        self._num_again = 0.0
        self._at_s = -math.inf

    def add(self, hashes: Sequence[int], num_cached: int, now: float) -> None:
        """A prompt is sent, or a leading piece of one. `num_cached`: leading blocks of the prompt
        that some worker has."""
        self._decay(now)
        self._num_new += max(0, len(hashes) - num_cached)
        remembered = self._remembered
        for at in range(EVERY - 1, len(hashes), EVERY):
            block = hashes[at]
            if block in remembered:
                del remembered[block]
                if at >= num_cached:
                    self._num_again += EVERY
            remembered[block] = None
        while len(remembered) > MAX_REMEMBERED:
            del remembered[next(iter(remembered))]

    def share_again(self) -> float:
        """Of the blocks that had to be computed, those that had been before: 0 to 1."""
        if self._num_new < MIN_BLOCKS:
            return 0.0
        return min(1.0, self._num_again / self._num_new)

    def _decay(self, now: float) -> None:
        if math.isfinite(self._at_s):
            factor = math.exp(-max(0.0, now - self._at_s) / WINDOW_S)
            self._num_new *= factor
            self._num_again *= factor
        self._at_s = now
