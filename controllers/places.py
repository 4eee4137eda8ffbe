"""Which ranks may take a worker's running places: some are kept free for better ranks.

Without that a flood of long requests of a low rank holds every place of the batch, and whoever
comes next waits for one of them to end, whatever its rank.

Kept for a better rank, with the places it has in use: the middle between what it has and wants now
and the most of the last minute, but at least one more than now; for all of them at most a share of
all places. A worker that sees one rank only keeps none.
"""

from __future__ import annotations

from collections import Counter

WINDOW_S = 30.0  # a peak is remembered for one to two of these


class Places:
    """Counts who runs and who waits, by rank. `max_kept_share` of `num_places` may be kept."""

    def __init__(self, num_places: int, max_kept_share: float) -> None:
        self.num_places = num_places
        self._max_kept = int(num_places * max_kept_share)
        self._running: Counter[int] = Counter()
        self._present: Counter[int] = Counter()  # waiting and running
        self._peaks: dict[int, _Peak] = {}

    def came(self, rank: int, now: float) -> None:
        """One more of this rank waits."""
        self._present[rank] += 1
        self._peaks.setdefault(rank, _Peak(now)).note(self._present[rank], now)

    def started(self, rank: int) -> None:
        """One that waited runs."""
        self._running[rank] += 1

    def left(self, rank: int, was_running: bool, now: float) -> None:
        self._peaks[rank].note(self._present[rank], now)  # so many were wanted until now
        self._present[rank] -= 1
        self._running[rank] -= was_running

    def num_free(self, rank: int, now: float) -> int:
        """Places that requests of this rank could take now: every better rank's bound on what is
        worse than it holds for them too."""
        bounds = (self._left_to(r, now) for r in {*self._peaks, rank} if r <= rank)
        return max(0, min(bounds))

    def _left_to(self, rank: int, now: float) -> int:
        """What this rank and worse ones may take together, less what they have; one at least may
        run."""
        kept = sum(self._kept_for(r, now) for r in self._peaks if r < rank)
        bound = max(1, self.num_places - min(self._max_kept, kept))
        num_running = sum(num for r, num in self._running.items() if r >= rank)
        num_free = self.num_places - sum(self._running.values())
        return min(num_free, bound - num_running)

    def _kept_for(self, rank: int, now: float) -> int:
        present = self._present[rank]
        most = max(present, self._peaks[rank].at(now))
        return max(present + 1, (present + most + 1) // 2) if most else 0


class _Peak:
    """The largest of what was noted in the present window and in the one before."""

    def __init__(self, now: float) -> None:
        self._began_at = now
        self._present = 0
        self._before = 0

    def note(self, value: int, now: float) -> None:
        self._turn(now)
        self._present = max(self._present, value)

    def at(self, now: float) -> int:
        self._turn(now)
        return max(self._present, self._before)

    def _turn(self, now: float) -> None:
        age = now - self._began_at
        if age < WINDOW_S:
            return
        self._before = self._present if age < 2 * WINDOW_S else 0
        self._present = 0
        self._began_at = now
