"""How often workers have handed a request back, and where it had better not go next.

Of one request, or of a piece of it, until that runs or fails. When a worker does it says `gate`,
how often it may `PlacementSettings`.
"""

from __future__ import annotations

import math
from collections.abc import Collection

# By then its router knows what came first there, and may judge for itself.
AVOIDED_S = 0.1


class Handbacks:
    """`num` so far."""

    def __init__(self) -> None:
        self.num = 0
        self._worker: str | None = None  # that did it last, until it is sent again
        self._until_s = -math.inf

    def add(self, worker: str, now: float) -> None:
        """`now` in seconds."""
        self.num += 1
        self._worker, self._until_s = worker, now + AVOIDED_S

    @property
    def is_choosy(self) -> bool:
        """There may be a worker that it avoids."""
        return self._worker is not None

    def forgive(self) -> None:
        """It may go anywhere the next time: it was sent, or nobody else will have it."""
        self._worker = None

    def avoided(self, left: Collection[str], now: float) -> set[str]:
        """Of the workers that may take it, unless that is the only one; for a moment: it must not
        wait for the others while this one has nothing to do."""
        if self._worker is None or now >= self._until_s:
            return set()
        return {self._worker} if any(worker != self._worker for worker in left) else set()
