"""What the learned retention policy keeps about one worker: room, floors and the price of a block.

The price is what a block must be worth to stay, in hits per block-second: the worth of promised
blocks at the moment they were evicted. Knows no classes and no plans.
"""

from __future__ import annotations

import math

from controllers.floors import Floors, ShadowLru
from controllers.grants import Room

FIRST_PRICE = 0.002  # before anything was evicted; learned within half a cache
# A group below its floor makes blocks dearer for the others too, by this power of its boost.
BOOST_POWER = 0.3


class RetentionWorker:
    """Books of a cache of `num_blocks` blocks."""

    def __init__(self, name: str, num_blocks: int) -> None:
        self.name = name
        self.room = Room(num_blocks)
        self.shadow = ShadowLru(num_blocks)
        self.floors = Floors()
        self.price = FIRST_PRICE
        self._log_price = math.log(FIRST_PRICE)
        self._half_life = max(1.0, num_blocks / 2.0)  # evicted blocks

    def evicted(self, worth: float, boost: float, num_blocks: int) -> None:
        """Promised blocks that were worth so much, to a group so far below its floor, had to go."""
        weight = 1.0 - 0.5 ** (num_blocks / self._half_life)
        paid = max(1e-6, worth) * boost**BOOST_POWER
        self._log_price += weight * (math.log(paid) - self._log_price)
        self.price = math.exp(self._log_price)
