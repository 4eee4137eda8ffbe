"""TensorRT-LLM's iteration statistics as Python dicts -> what is known of a rank's load.

Owns the checks: a figure that cannot be is named once in the log and not believed. Knows no
requests; an idle engine sends nothing, which is for the caller to notice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from controllers.events import Iteration
from serve_app.engine.stats import IterationStats

logger = logging.getLogger(__name__)

MAX_ITERATION_MS = 600_000.0


class RankStats:
    """The newest figures of one rank, and the shapes of its iterations since they were taken.

    One thread feeds it, any other may read. `num_used`: blocks of the GPU that requests hold,
    cached ones not counted; None: not said yet.
    """

    def __init__(self) -> None:
        self.num_used: int | None = None
        self.num_bad_figures = 0
        self._shapes = IterationStats()
        self._complaints: set[str] = set()
        self._lock = threading.Lock()

    def feed(self, stats: Mapping[str, Any]) -> None:
        with self._lock:
            self._feed_blocks(stats)
            self._feed_iteration(stats)

    def forget(self) -> None:
        """The engine is idle: what it said last is no longer so."""
        self.num_used = None

    def take_iterations(self) -> list[Iteration]:
        return self._shapes.take()

    def _feed_blocks(self, stats: Mapping[str, Any]) -> None:
        blocks = _mapping(stats.get("kvCacheStats"))
        used, total = self._count(blocks, "usedNumBlocks"), self._count(blocks, "maxNumBlocks")
        if used is not None and total and used > total:
            self._complain("usedNumBlocks", f"{used} of {total}")
            used = None
        if used is not None:
            self.num_used = used

    def _feed_iteration(self, stats: Mapping[str, Any]) -> None:
        """Under the overlap scheduler a latency spans about two loops: this one's work and the
        next one's start, so half of it is this iteration's share."""
        batch = _mapping(stats.get("inflightBatchingStats"))
        ms = stats.get("iterLatencyMS")
        new_tokens, num_decodes = (
            self._count(batch, "numCtxTokens"),
            self._count(batch, "numGenRequests"),
        )
        if ms is None or new_tokens is None or num_decodes is None or not new_tokens + num_decodes:
            return
        if not isinstance(ms, (int, float)) or not 0 <= ms <= MAX_ITERATION_MS:
            self._complain("iterLatencyMS", ms)
            return
        if stats.get("schedulerMode") == "overlap":
            ms /= 2
        self._shapes.record(new_tokens, num_decodes, self.num_used or 0, float(ms))

    def _count(self, stats: Mapping[str, Any], name: str) -> int | None:
        """None for a figure that is absent or impossible."""
        value = stats.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            self._complain(name, value)
            return None
        return value

    def _complain(self, name: str, value: object) -> None:
        self.num_bad_figures += 1
        if name not in self._complaints:
            self._complaints.add(name)
            logger.warning("TensorRT-LLM says %s is %s: not believed (said once)", name, value)


def by_rank(stats: Iterable[Mapping[str, Any] | None]) -> list[tuple[int, Mapping[str, Any]]]:
    """Statistics with their rank, in order; what is empty or no object is passed over."""
    return [(_rank(item), item) for item in stats if item and isinstance(item, Mapping)]


def _rank(item: Mapping[str, Any]) -> int:
    rank = item.get("attentionDpRank")
    return rank if isinstance(rank, int) and rank >= 0 else 0


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
