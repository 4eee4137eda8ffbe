"""Floors: no group of requests shall hit much less than it would in a plain LRU cache.

Owns, for one worker, a shadow LRU cache of its size, in which only runs are counted, and each
group's hits here and there. A group below its floor is worth more than its index says, the more the
larger the shortage. Knows no promise and no index.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from controllers.touch_tree import TouchedRun

TARGET = 0.98  # of the hits of LRU; a shortage is what lifts a group, so somewhat less comes of it
# Steep enough that little is short of the target, and no steeper: a boost that swings costs the
# others more hits than a steady one. It goes far, as some groups come again a hundred times as
# often as others.
GAIN = 30.0
MAX_BOOST = 1000.0
# A group's hits are forgotten by half after so many of its own blocks.
HALF_LIFE_BLOCKS = 50_000.0
MAX_GROUPS = 1024


class ShadowLru:
    """What plain LRU of so many blocks would hold."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._runs: OrderedDict[TouchedRun, int] = OrderedDict()  # leading blocks held
        self._num_held = 0
        self.residence_s = 0.0  # how long what it evicted last had been idle

    def use(self, path: Sequence[TouchedRun], now: float) -> int:
        """Leading blocks of the prompt that it holds; it holds all of them then."""
        runs, num_hits, is_whole = self._runs, 0, True
        for run in path:
            held = min(runs.get(run, 0), len(run.hashes)) if is_whole else 0
            num_hits += held
            is_whole = held == len(run.hashes)
        for run in reversed(path):  # a prefix outlives what follows it
            self._num_held += len(run.hashes) - runs.pop(run, 0)
            runs[run] = len(run.hashes)
        self._evict(now)
        return num_hits

    def _evict(self, now: float) -> None:
        while self._num_held > self._num_blocks:
            run, held = next(iter(self._runs.items()))
            evicted = min(held, self._num_held - self._num_blocks)
            self._num_held -= evicted
            self.residence_s = now - run.last_used_s
            if evicted == held:
                del self._runs[run]
            else:
                self._runs[run] = held - evicted


@dataclass
class _Hits:
    here: float = 0.0
    in_lru: float = 0.0


class Floors:
    """Boosts by group, on one worker."""

    def __init__(self) -> None:
        self._hits: OrderedDict[Hashable, _Hits] = OrderedDict()
        self._all = _Hits()

    @property
    def is_behind(self) -> bool:
        """All groups together have fewer hits than in the LRU cache."""
        return self._all.here < self._all.in_lru

    def boost(self, group: Hashable) -> float:
        """How many times its index a group is worth; 1 at or above its floor."""
        hits = self._hits.get(group)
        if hits is None or hits.in_lru <= 0:
            return 1.0
        shortage = (TARGET * hits.in_lru - hits.here) / hits.in_lru
        exponent = max(0.0, GAIN * shortage)
        return MAX_BOOST if exponent > math.log(MAX_BOOST) else math.exp(exponent)

    def count(self, group: Hashable, num_blocks: int, num_hits: int, num_lru_hits: int) -> None:
        """A request of `num_blocks` found so many cached, and would have in the LRU cache."""
        hits = self._hits.setdefault(group, _Hits())
        self._hits.move_to_end(group)
        decay = 0.5 ** (num_blocks / HALF_LIFE_BLOCKS)
        for counted in (hits, self._all):
            counted.here = counted.here * decay + num_hits
            counted.in_lru = counted.in_lru * decay + num_lru_hits
        if len(self._hits) > MAX_GROUPS:
            self._hits.popitem(last=False)
