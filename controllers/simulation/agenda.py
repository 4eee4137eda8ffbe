"""What happens next in a simulated fleet. Times are in ms.

Simultaneous events go in the order of `Kind`, then of their making, so that a seed decides all.
"""

from __future__ import annotations

import heapq
import math
from enum import IntEnum

from controllers.errors import SettingsError


class Kind(IntEnum):
    """Behind each the meaning of its number."""

    DOWN = 0  # index of a worker
    UP = 1  # likewise
    ARRIVAL = 2  # of a request
    ITERATION = 3  # of a worker
    SNAPSHOT = 4  # of a worker
    LOAD = 5  # of a worker
    WAKE = 6  # of a router
    GATE = 7  # of a worker: it has gathered, or a deadline ends
    STARTED = 8  # of a worker
    SCALE = 9  # none
    HANDED_BACK = 10  # of a request


class Agenda:
    """`now` is the time of the last event that was taken."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, Kind, int, int]] = []
        self._num_noted = 0

    def note(self, at: float, kind: Kind, number: int = 0) -> None:
        """The past is now."""
        self._num_noted += 1
        heapq.heappush(self._events, (max(at, self.now), kind, self._num_noted, number))

    def next_but(self, kind: Kind) -> float:
        """When something of another kind happens; inf: never."""
        return min((at for at, other, *_ in self._events if other is not kind), default=math.inf)

    def take(self) -> tuple[Kind, int]:
        """Go on to the next event. Raises SettingsError if there is none."""
        if not self._events:
            raise SettingsError(
                f"nothing happens any more after {self.now / 1e3:.1f} s, with requests left"
            )
        self.now, kind, _, number = heapq.heappop(self._events)
        return kind, number
