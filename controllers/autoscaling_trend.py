"""How fast the fleet's work grows, from two running means of different length.

On a steady ramp a running mean lags by its time constant times the slope, so the two means'
distance tells the slope. Times in seconds.
"""

from __future__ import annotations

import math

QUICK_S = 60.0
SLOW_S = 300.0
MAX_GROWTH = 2.0


class Trend:
    """`observe` the work; `growth(ahead_s)` is what it will be, as a multiple of the quick mean."""

    def __init__(self) -> None:
        self.quick = 0.0
        self._slow = 0.0
        self._first_at: float | None = None
        self._last_at = 0.0

    def observe(self, work: float, now: float) -> None:
        if self._first_at is None:
            self._first_at, self.quick, self._slow = now, work, work
        elapsed_s = max(0.0, now - self._last_at) if self._last_at else 0.0
        self._last_at = now
        self.quick += (1.0 - math.exp(-elapsed_s / QUICK_S)) * (work - self.quick)
        self._slow += (1.0 - math.exp(-elapsed_s / SLOW_S)) * (work - self._slow)

    def growth(self, ahead_s: float) -> float:
        """1 for work that shrinks, or is known for less than the quick mean's time."""
        if self._first_at is None or self._last_at - self._first_at < QUICK_S or not self.quick:
            return 1.0
        slope = max(0.0, self.quick - self._slow) / (SLOW_S - QUICK_S)
        return min(MAX_GROWTH, 1.0 + slope * ahead_s / self.quick)
