"""How often workers have handed a request back, and where it had better not go next.

Of one request, or of a piece of it, until that runs or fails. When a worker does it says `gate`,
how often it may `PlacementSettings`.
"""

from __future__ import annotations

from collections.abc import Collection


class Handbacks:
    """`num` so far."""

    def __init__(self) -> None:
        self.num = 0
        self._worker: str | None = None  # that did it last, until it is sent again

    def add(self, worker: str) -> None:
        self.num += 1
        self._worker = worker

    def sent(self) -> None:
        """It may go anywhere the next time: by then its router knows what came first."""
        self._worker = None

    def avoided(self, left: Collection[str]) -> set[str]:
        """Of the workers that may take it, unless that is the only one."""
        if self._worker is None or not any(worker != self._worker for worker in left):
            return set()
        return {self._worker}
