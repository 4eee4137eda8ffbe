"""What routers have sent to a worker and its engine has not started: in which order, and when.

What comes in one moment from several routers none of them could know of. So who finds more before
it than its router says that it may be is handed back, for its router to decide anew.

Owns who waits and who runs at one worker. Order and who gives way are `fair_queue`'s, places
that better ranks keep are `places`'. Knows no engine: it is told first tokens and ends.
"""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple

from controllers.errors import Overloaded, WorkerFull
from controllers.fair_queue import Bounds, FairQueue
from controllers.places import Places
from controllers.start_rate import StartRate
from controllers.waiting import Waiting

# Prompts of at most this share of a full iteration's tokens may start together: the fixed part of
# an iteration is then most of what each would cost alone (1,536 of 8,192 tokens, by simulation).
SHARED_START_SHARE = 0.1875
# What several routers send in one moment comes within this; an iteration takes several times as
# long, so that hardly a start is late for the next one.
GATHER_S = 0.001


class GateRules(NamedTuple):
    """`shared_start_tokens`: prefills share a start while at most so many tokens are left to
    prefill, as together they cost little more than the fixed part of an iteration.
    `quantum_tokens`: credit of a tenant's turn. `max_kept_share`: see `places`. `gather_s`: so long
    the gate of a busy engine waits for more after the first of several comes, so that what several
    routers send in the same moment starts in order."""

    bounds: Bounds
    shared_start_tokens: int
    max_running: int
    quantum_tokens: int
    max_kept_share: float = 0.0
    gather_s: float = 0.0


class Gate:
    """Requests of one worker, waiting and running. `now` is in seconds."""

    def __init__(self, rules: GateRules) -> None:
        self._rules = rules
        self._queue = FairQueue(rules.bounds, rules.quantum_tokens)
        self._places = Places(rules.max_running, rules.max_kept_share)
        self._running: dict[str, Waiting] = {}
        self._owed: dict[str, int] = {}  # running requests without a first token
        self._owed_tokens = 0
        self._deadlines: list[tuple[float, str]] = []
        self._rate = StartRate()
        self._gathers_until = -math.inf
        self._newcomers: list[Waiting] = []  # that may be handed back

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def waiting_tokens(self) -> int:
        """Tokens that the waiting requests have to prefill."""
        return self._queue.tokens

    def waiting_by_rank(self) -> dict[int, tuple[int, int]]:
        """Rank -> requests that wait and their uncached tokens. Any thread."""
        return self._queue.by_rank()

    def submit(self, item: Waiting) -> list[Waiting]:
        """Returns those that gave way to it, and have left.

        Raises WorkerFull, with nothing changed, if the gate is full and nobody gives way;
        ValueError for an id that is here already.
        """
        if item.request_id in self._running:
            raise ValueError(f"request {item.request_id!r} runs already")
        now, was_empty = item.submitted_s, not len(self._queue)
        try:
            displaced = self._queue.submit(item)
        except Overloaded as error:
            raise WorkerFull(str(error), self.retry_after_s(item.rank, now)) from None
        for victim in displaced:
            self._places.left(victim.rank, False, now)
        self._places.came(item.rank, now)
        self._note_deadline(item)
        # One that others gave way to keeps the place: else they would have left for nothing.
        if item.max_ahead_tokens < math.inf and item.uncached_tokens and not displaced:
            self._newcomers.append(item)
        if was_empty and self._running and item.has_peers:
            self._gathers_until = now + self._rules.gather_s
        return displaced

    def gathers_until(self, now: float) -> float | None:
        """When to call `start` again, if it waits for more to come."""
        return self._gathers_until if len(self._queue) and now < self._gathers_until else None

    def retry_after_s(self, rank: int, now: float) -> float:
        """When there may be room for a request of this rank."""
        return self._rate.retry_after_s(self._queue.num_up_to(rank), now)

    def expire(self, now: float) -> list[Waiting]:
        """Those whose deadline passed while they waited; they have left."""
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline_s, request_id = heapq.heappop(self._deadlines)
            item = self._queue.get(request_id)
            if item is not None and item.deadline_s == deadline_s:
                self.leave(request_id, now)
                expired.append(item)
        return expired

    def start(self, now: float) -> list[Waiting]:
        """Those to start now, in order; they run from here on.

        The first in order goes when no prefill is left or all that is left is short together. If it
        has to wait for that, full hits pass it; those of a worse rank leave a place free for it.
        """
        started = []
        while (item := self._startable(now)) is not None:
            self._queue.take(item)
            self._places.started(item.rank)
            self._running[item.request_id] = item
            self._owed[item.request_id] = item.uncached_tokens
            self._owed_tokens += item.uncached_tokens
            started.append(item)
        if started:
            self._rate.add(len(started), now)
        return started

    def hand_back(self, now: float) -> list[Waiting]:
        """Of those that came since the last call and were not started, whoever has too much before
        it; they have left. To be called after `start`; nobody is judged before it has gathered."""
        if not self._newcomers or now < self._gathers_until:
            return []
        newcomers, self._newcomers = self._newcomers, []
        overtaken = []
        for item in sorted(newcomers, key=lambda item: item.uncached_tokens):
            if self._queue.get(item.request_id) is not item:
                continue
            if self._owed_tokens + self._queue.tokens_before(item) > item.max_ahead_tokens:
                self.leave(item.request_id, now)
                overtaken.append(item)
        return overtaken

    def prefill_ended(self, request_id: str) -> bool:
        """Its first token came. False if that was known, or it does not run."""
        tokens = self._owed.pop(request_id, None)
        self._owed_tokens -= tokens or 0
        return tokens is not None

    def leave(self, request_id: str, now: float) -> None:
        """It neither waits nor runs any longer. Unknown ids change nothing."""
        self.prefill_ended(request_id)
        running = self._running.pop(request_id, None)
        item = running or self._queue.get(request_id)
        if item is None:
            return
        self._queue.cancel(request_id)
        self._places.left(item.rank, running is not None, now)

    def _startable(self, now: float) -> Waiting | None:
        first = self._queue.first()
        if first is None:
            return None
        num_free = self._places.num_free(first.rank, now)
        if num_free > 0 and self._may_prefill(first.uncached_tokens, now):
            return first
        hit = self._queue.first_hit()
        if hit is None or hit is first:
            return None
        num_free -= hit.rank != first.rank
        return hit if min(num_free, self._places.num_free(hit.rank, now)) > 0 else None

    def _may_prefill(self, tokens: int, now: float) -> bool:
        if tokens and self._running and now < self._gathers_until:
            return False
        left = self._owed_tokens
        return tokens == 0 or left <= 0 or left + tokens <= self._rules.shared_start_tokens

    def _note_deadline(self, item: Waiting) -> None:
        if math.isinf(item.deadline_s):
            return
        if len(self._deadlines) > 2 * len(self._queue) + 64:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._queue]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (item.deadline_s, item.request_id))
