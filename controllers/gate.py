"""What routers have sent to a worker and its engine has not started: in which order, and when.

Shortest remaining prefill first, minus the time waited, so that nobody waits for ever. Knows no
engine; the caller says how much prefill is left there.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from controllers.errors import Overloaded

# What a token of prefill weighs against a ms of waiting; a GPU's rate. It need not be exact.
AGING_MS_PER_TOKEN = 0.0155


def order_key(tier: int, uncached_tokens: int, submitted_s: float) -> tuple[int, float]:
    """Smaller goes first: the tier (0 is the best), then prefill ms minus ms waited.

    All wait at the same pace, so the order of two requests never changes and needs no clock.
    """
    return tier, AGING_MS_PER_TOKEN * uncached_tokens + 1000.0 * submitted_s


class _Entry(NamedTuple):
    key: tuple[int, float]
    number: int  # order of arrival, among equals
    request_id: str
    uncached_tokens: int


class Gate:
    """Waiting requests of one worker.

    `max_waiting` requests may wait. Prefills share a start while at most `shared_start_tokens`
    tokens are left to prefill: together they cost little more than the fixed part of an iteration.
    """

    def __init__(self, max_waiting: int, shared_start_tokens: int) -> None:
        self._max_waiting = max_waiting
        self._shared_start_tokens = shared_start_tokens
        self._waiting: dict[str, _Entry] = {}
        self._hits: list[_Entry] = []
        self._prefills: list[_Entry] = []
        self._num_submitted = 0
        self._waiting_tokens = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._waiting

    @property
    def waiting_tokens(self) -> int:
        """Tokens that the waiting requests have to prefill."""
        return self._waiting_tokens

    def submit(self, request_id: str, uncached_tokens: int, now: float, tier: int = 0) -> None:
        """Raises Overloaded if too many wait, ValueError for an id that waits already."""
        if request_id in self._waiting:
            raise ValueError(f"request {request_id!r} waits already")
        if len(self._waiting) >= self._max_waiting:
            raise Overloaded(f"{len(self._waiting)} requests wait for this worker, its bound")
        tokens = max(0, uncached_tokens)
        self._num_submitted += 1
        entry = _Entry(order_key(tier, tokens, now), self._num_submitted, request_id, tokens)
        self._waiting[request_id] = entry
        self._waiting_tokens += tokens
        heapq.heappush(self._prefills if tokens else self._hits, entry)

    def next(self, prefill_tokens_left: int, num_free: int) -> list[str]:
        """Requests to start now, in order; they wait no longer.

        `prefill_tokens_left`: uncached tokens of started requests that the engine has not computed
        yet. `num_free`: how many more requests the engine can run. A full hit needs no prefill and
        passes; else the first in order goes when no prefill is left or both are short.
        """
        started: list[str] = []
        left = prefill_tokens_left
        while len(started) < num_free:
            entry = self._first_startable(left)
            if entry is None:
                break
            self._remove(entry)
            left += entry.uncached_tokens
            started.append(entry.request_id)
        return started

    def cancel(self, request_id: str) -> bool:
        """It waits no longer. False if it did not wait."""
        entry = self._waiting.get(request_id)
        if entry is None:
            return False
        self._remove(entry)
        return True

    def _first_startable(self, left: int) -> _Entry | None:
        heads = [self._head(self._hits), self._head(self._prefills)]
        return min((e for e in heads if e is not None and self._may_start(e, left)), default=None)

    def _may_start(self, entry: _Entry, left: int) -> bool:
        tokens = entry.uncached_tokens
        return tokens == 0 or left <= 0 or left + tokens <= self._shared_start_tokens

    def _head(self, heap: list[_Entry]) -> _Entry | None:
        """Drops what was cancelled before."""
        while heap and self._waiting.get(heap[0].request_id) is not heap[0]:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _remove(self, entry: _Entry) -> None:
        del self._waiting[entry.request_id]
        self._waiting_tokens -= entry.uncached_tokens
        if len(self._hits) + len(self._prefills) > 2 * len(self._waiting) + 64:
            self._hits = self._live(self._hits)
            self._prefills = self._live(self._prefills)

    def _live(self, heap: list[_Entry]) -> list[_Entry]:
        live = [e for e in heap if self._waiting.get(e.request_id) is e]
        heapq.heapify(live)
        return live
