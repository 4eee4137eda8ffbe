"""How long prefixes stay idle until they are asked for again, by class, learned online.

Owns the classes' counts and what follows from them: the index, hits per block-second that a block
is worth when it has been idle for so long. Knows no cache, prefix or request.

A touch is the end of a use. It is at risk in every bin of idle time that it reached, and a reuse in
the bin where it was used again. Its class is shrunk towards the parent class, so a rare class
behaves like what it belongs to until it has shown otherwise.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Counts: TypeAlias = npt.NDArray[np.float64]

# Seconds of idle time. What is idle for longer counts as never used again.
EDGES_S = (
    0.0, 1.0, 2.0, 3.0, 4.5, 6.0, 8.0, 10.0, 13.0, 16.0, 20.0, 25.0, 32.0, 40.0, 52.0, 66.0, 84.0,
    108.0, 140.0, 180.0, 240.0, 320.0, 430.0, 580.0, 780.0, 1050.0, 1400.0,
)  # fmt: skip
NUM_BINS = len(EDGES_S) - 1
MAX_IDLE_S = EDGES_S[-1]
MAX_CLASSES = 1024
HALF_LIFE_S = 600.0
# Pseudo-counts: a class needs so many touches to count as much as its parent.
SHRINKAGE = 8.0
_ROOT_SHRINKAGE = 0.3
_ROOT_HAZARD = 0.05  # of a bin, before anything is known
_KEEP_TOUCHES = 5000  # done ones are dropped in lots


class Touch:
    """The end of a use. `gap_s` None: idle since; nan: nobody will know."""

    __slots__ = ("at", "class_id", "gap_s")

    def __init__(self, at: float, class_id: int) -> None:
        self.at = at
        self.class_id = class_id
        self.gap_s: float | None = None


class Survival:
    """Touches in, an index by class and idle time out. Class 0 is the root."""

    def __init__(self, shrinkage: float = SHRINKAGE, half_life_s: float = HALF_LIFE_S) -> None:
        self.index: list[list[float]] = []  # class -> bin -> hits per block-second
        self.reach: list[list[float]] = []  # class -> for `last_age_s`
        self._later: list[list[float]] = []  # class -> bin -> P(used again, but not before it)
        self._shrinkage = shrinkage
        self._half_life_s = half_life_s
        self._id_of: dict[Hashable, int] = {}
        self._parents: list[int] = []
        self._reuses: Counts = np.zeros((64, NUM_BINS))
        self._at_risk: Counts = np.zeros((64, NUM_BINS))
        self._touches: list[Touch] = []
        self._new_reuses: list[tuple[int, int]] = []  # class and bin, since the last fit
        self._done_of = [0] * NUM_BINS  # bin -> touches that have reached it or never will
        self._fitted_at: float | None = None
        self._add("all", -1)
        self.fit(0.0)
        self._fitted_at = None

    def class_of(self, *path: Hashable) -> int:
        """Id of the class that `path` leads to, made when it is new; the root for no path.

        A new class is worth what its parent is until the next fit. When there are too many, the
        last known class on the path stands for the new one.
        """
        class_id = self._id_of.get(path, 0)
        if class_id:
            return class_id
        for depth in range(1, len(path) + 1):
            known = self._id_of.get(path[:depth])
            if known is None:
                if len(self._parents) >= MAX_CLASSES:
                    return class_id
                known = self._add(path[:depth], class_id)
            class_id = known
        return class_id

    def touch(self, now: float, class_id: int) -> Touch:
        """A use ends now. One that comes late is counted late."""
        touch = Touch(now, class_id)
        self._touches.append(touch)
        return touch

    def copy(self, touch: Touch) -> Touch:
        """Another one of the same time and class, still idle: what was touched came apart."""
        return self.touch(touch.at, touch.class_id)

    def drop(self, touch: Touch) -> None:
        """Nobody will know: it is at risk no more, without a reuse."""
        touch.gap_s = math.nan

    def reuse(self, touch: Touch, now: float) -> None:
        """What was touched is used again."""
        touch.gap_s = max(0.0, now - touch.at)
        self._new_reuses.append((touch.class_id, bin_of(touch.gap_s)))

    def fit(self, now: float) -> None:
        """Bring counts and index up to date. Milliseconds; every 10 s is often enough."""
        if self._fitted_at is not None:
            decay = 0.5 ** ((now - self._fitted_at) / self._half_life_s)
            self._reuses *= decay
            self._at_risk *= decay
        self._fitted_at = now
        self._count_reuses()
        self._count_at_risk(now)
        hazards = self._hazards()
        index = _index_of(hazards)
        self._later = _later_of(hazards).tolist()
        self.index = index.tolist()
        self.reach = (-np.maximum.accumulate(index[:, ::-1], axis=1)[:, ::-1]).tolist()

    def worth(self, class_id: int, idle_s: float) -> float:
        """The index after so long."""
        return self.index[class_id][min(bin_of(idle_s), NUM_BINS - 1)]

    def chance_after(self, class_id: int, idle_s: float) -> float:
        """P(used again, but not within so long) of what was just used."""
        at = bin_of(idle_s)
        return self._later[class_id][at] if at < NUM_BINS else 0.0

    def _add(self, key: Hashable, parent: int) -> int:
        class_id = len(self._parents)
        self._id_of[key] = class_id
        self._parents.append(parent)
        if class_id == len(self._reuses):
            self._reuses = np.concatenate([self._reuses, np.zeros_like(self._reuses)])
            self._at_risk = np.concatenate([self._at_risk, np.zeros_like(self._at_risk)])
        if parent >= 0:
            self.index.append(self.index[parent])
            self.reach.append(self.reach[parent])
            self._later.append(self._later[parent])
        return class_id

    def _count_reuses(self) -> None:
        for class_id, at in self._new_reuses:
            while at < NUM_BINS and class_id >= 0:
                self._reuses[class_id, at] += 1.0
                class_id = self._parents[class_id]
        self._new_reuses.clear()

    def _count_at_risk(self, now: float) -> None:
        touches, at_risk = self._touches, self._at_risk
        for at, edge in enumerate(EDGES_S[:-1]):
            done = self._done_of[at]
            while done < len(touches) and touches[done].at <= now - edge:
                gap_s, class_id = touches[done].gap_s, touches[done].class_id
                while class_id >= 0 and (gap_s is None or gap_s >= edge):
                    at_risk[class_id, at] += 1.0
                    class_id = self._parents[class_id]
                done += 1
            self._done_of[at] = done
        done = self._done_of[-1]
        if done > _KEEP_TOUCHES:
            del touches[:done]
            self._done_of = [num - done for num in self._done_of]

    def _hazards(self) -> Counts:
        """P(used again within the bin | idle at its start), by class and bin."""
        num = len(self._parents)
        hazards = np.empty((num, NUM_BINS))
        for class_id, parent in enumerate(self._parents):
            prior: Counts | float = hazards[parent] if parent >= 0 else _ROOT_HAZARD
            weight = self._shrinkage if parent >= 0 else _ROOT_SHRINKAGE
            reuses = self._reuses[class_id] + weight * prior
            hazards[class_id] = reuses / (self._at_risk[class_id] + weight)
        return np.clip(hazards, 1e-6, 0.98)


def bin_of(idle_s: float) -> int:
    """NUM_BINS for what is beyond the last edge."""
    return bisect_right(EDGES_S, idle_s) - 1


def last_age_s(reach: list[float], least: float) -> float:
    """The idle time from which on a block is never again worth `least`; 0 if it never is.

    `reach`: by bin, minus the most that a block will be worth in it or later.
    """
    return EDGES_S[bisect_right(reach, -least)]


def _later_of(hazards: Counts) -> Counts:
    """P(idle until the start of each bin, and used again from then on)."""
    left = np.cumprod(1.0 - hazards, axis=1)
    idle = np.concatenate([np.ones((len(hazards), 1)), left[:, :-1]], axis=1)
    later: Counts = idle - left[:, -1:]
    return later


def _index_of(hazards: Counts) -> Counts:
    """The best rate of return from each bin on: hits until some later bin, for each block-second
    spent until the reuse or that bin (Gittins' index of a block that costs one per second)."""
    widths = np.diff(np.array(EDGES_S))
    num = len(hazards)
    idle = np.concatenate([np.ones((num, 1)), np.cumprod(1.0 - hazards, axis=1)[:, :-1]], axis=1)
    hits = _sums(idle * hazards)
    seconds = _sums(idle * widths * (1.0 - hazards / 2.0))
    index = np.empty((num, NUM_BINS))
    for at in range(NUM_BINS):
        won = hits[:, at + 1 :] - hits[:, at : at + 1]
        spent = seconds[:, at + 1 :] - seconds[:, at : at + 1]
        index[:, at] = (won / (spent + 1e-12)).max(axis=1)
    return index


def _sums(values: Counts) -> Counts:
    return np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
