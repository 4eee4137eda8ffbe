"""How many requests start per second, lately; what a refused client is told to wait."""

from __future__ import annotations

import math

MEMORY_S = 10.0
MIN_RETRY_S = 1.0
MAX_RETRY_S = 60.0


class StartRate:
    """A decaying count of starts; `now` in seconds of any steady clock."""

    def __init__(self) -> None:
        self._count = 0.0
        self._counted_at = 0.0
        self._first_at: float | None = None

    def add(self, num_started: int, now: float) -> None:
        if self._first_at is None:
            self._first_at = now
        self._count = self._decayed(now) + num_started
        self._counted_at = now

    def per_s(self, now: float) -> float:
        """0 before the first start."""
        if self._first_at is None:
            return 0.0
        seen_s = max(1.0, now - self._first_at)
        return self._decayed(now) / (MEMORY_S * -math.expm1(-seen_s / MEMORY_S))

    def retry_after_s(self, num_ahead: int, now: float) -> float:
        """Until so many have started; the least, if nothing is known."""
        rate = self.per_s(now)
        return min(MAX_RETRY_S, max(MIN_RETRY_S, num_ahead / rate)) if rate else MIN_RETRY_S

    def _decayed(self, now: float) -> float:
        return self._count * math.exp(-max(0.0, now - self._counted_at) / MEMORY_S)
