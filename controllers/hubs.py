"""Shared prefixes: when a second worker should get a copy of one.

The worker that computed a system prompt first is cheapest for everybody who shares it, so an idle
fleet would send them all there. Ski rental: once as many tokens have been computed behind the
prefix as the prefix is long, computing it once more elsewhere at most doubles the work, and it is
done once for each worker. Knows neither workers nor costs.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

MAX_HUBS = 65_536
# A conversation leaves its own prefix once per turn, a few times with retries.
MIN_BRANCHES = 3


@dataclass
class _Hub:
    num_branches: int = 0
    num_tokens: int = 0


class Hubs:
    """Keyed by the last block that a request found cached. Least recently used ones are dropped.

    `copy_ratio`: tokens behind a prefix, as multiple of its length, that pay for a copy; 0: never.
    """

    def __init__(self, copy_ratio: float) -> None:
        self._copy_ratio = copy_ratio
        self._hubs: OrderedDict[int, _Hub] = OrderedDict()

    def is_copy_due(self, block_hash: int, prefix_tokens: int) -> bool:
        """True if requests that leave the prefix at this block have paid for a copy."""
        hub = self._hubs.get(block_hash)
        return (
            hub is not None
            and self._copy_ratio > 0
            and hub.num_branches >= MIN_BRANCHES
            and hub.num_tokens >= self._copy_ratio * prefix_tokens
        )

    def leave(self, block_hash: int, num_tokens: int) -> None:
        """A request computes `num_tokens` behind this block."""
        hub = self._hubs.setdefault(block_hash, _Hub())
        hub.num_branches += 1
        hub.num_tokens += num_tokens
        self._hubs.move_to_end(block_hash)
        if len(self._hubs) > MAX_HUBS:
            self._hubs.popitem(last=False)

    def copied(self, block_hash: int) -> None:
        """A copy was made; the next one has to be paid for again."""
        hub = self._hubs.get(block_hash)
        if hub is not None:
            hub.num_tokens = 0
