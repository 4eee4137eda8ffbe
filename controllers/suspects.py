"""Workers that failed a request a moment ago, and are left out while others can take it.

Does not know what a failure was, who replaces a worker or when it is gone: those who know say so,
and until then nobody else should wait for the same failure.
"""

from __future__ import annotations

from collections.abc import Collection


class Suspects:
    """A worker is suspected for `hold_s` after its last failure. `now` in s of a steady clock."""

    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
        self._until: dict[str, float] = {}

    def fail(self, worker: str, now: float) -> None:
        self._until[worker] = now + self._hold_s

    def clear(self, worker: str) -> None:
        """It did what was asked of it after all. Unknown workers change nothing."""
        self._until.pop(worker, None)

    def among(self, workers: Collection[str], now: float) -> set[str]:
        """The suspected ones; none if all are, for any of them is better than no answer."""
        if not self._until:
            return set()
        self._until = {worker: until for worker, until in self._until.items() if until > now}
        found = self._until.keys() & set(workers)
        return set() if len(found) == len(workers) else found
