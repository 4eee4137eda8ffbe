"""A request that waits, and what its place among others depends on.

Plain values; who waits where is `fair_queue`'s.
"""

from __future__ import annotations

import math
from typing import NamedTuple

# What a token of prefill weighs against a ms of waiting; a GPU's rate. It need not be exact.
AGING_MS_PER_TOKEN = 0.0155
# What a request counts at least when shares are kept: with a full hit for nothing, a tenant of
# full hits would never have had its share.
MIN_CHARGE_TOKENS = 64


class Waiting(NamedTuple):
    """`rank` 0 is the best. `weight` is its tenant's. `deadline_s`: not to be started after it.
    `max_ahead_tokens`: with more to prefill before it, it had better go elsewhere. `has_peers`:
    other routers may send in the same moment."""

    request_id: str
    uncached_tokens: int
    submitted_s: float
    rank: int = 0
    tenant: str = "default"
    weight: float = 1.0
    deadline_s: float = math.inf
    max_ahead_tokens: float = math.inf
    has_peers: bool = True

    @property
    def charge(self) -> int:
        """Tokens that its tenant's share pays for it."""
        return max(self.uncached_tokens, MIN_CHARGE_TOKENS)


def order_key(uncached_tokens: int, submitted_s: float) -> float:
    """Smaller goes first among a tenant's requests: prefill ms minus ms waited.

    All wait at the same pace, so the order of two requests never changes and needs no clock.
    """
    return AGING_MS_PER_TOKEN * uncached_tokens + 1000.0 * submitted_s
