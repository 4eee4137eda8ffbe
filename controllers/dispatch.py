"""Late binding: requests wait here until the worker that they should go to can start them.

So the choice is made with what is known at that moment, the shortest work goes first, and others
may pass long prompts. A pass looks at what waits, in order; who has to wait for a worker keeps its
time reserved for the rest of the pass, so that later ones do not count on it. Owns who waits; the
steps of a decision are `placing`'s, the order is `router_queue`'s and, in a burst, `bursts`'. `now`
is in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from controllers.at_best import AtBest
from controllers.bursts import MOST_PER_WORKER, Wish, last_ones_choose
from controllers.candidates import Candidates
from controllers.choice import Choice
from controllers.costs import Costs
from controllers.errors import CachelaneError, Overloaded
from controllers.placement_types import Query, Refused, Sent, TableView
from controllers.placing import Placing
from controllers.reserved import Reserved
from controllers.router_queue import RouterQueue, Waiter
from controllers.starting import Rules, may_start, piece_tokens

ExcludeOf: TypeAlias = Callable[[Query], Collection[str]]

# Whoever waits is looked at again after this, even if nothing was heard.
RUN_EVERY_S = 0.1
MIN_PAUSE_S = 0.001


class Dispatcher:
    """Requests that were submitted and neither sent nor refused nor removed."""

    def __init__(self, placing: Placing, rules: Rules) -> None:
        self.rules = rules
        self._placing = placing
        self._books = placing.ledger.books
        self._queue = RouterQueue()

    def __len__(self) -> int:
        return len(self._queue)

    def submit(self, query: Query, since_s: float) -> None:
        self._queue.add(query, since_s)

    def remove(self, request_id: str) -> None:
        """Unknown ids change nothing."""
        self._queue.remove(request_id)

    def run(self, table: TableView, now: float, exclude_of: ExcludeOf) -> list[Sent | Refused]:
        """One pass."""
        results: list[Sent | Refused] = []
        waiters, found = [], []
        for waiter in self._queue.scanned():
            query = waiter.query
            try:
                found.append(self._placing.ranker.find(query, table, now, exclude_of(query)))
                waiters.append(waiter)
            except CachelaneError as error:
                results.append(Refused(request_id=query.request_id, error=error))
        if waiters:
            results += _Pass(self._placing, self.rules, waiters, found, table, now).run(self._queue)
        for result in results:
            if isinstance(result, Refused):
                self._queue.remove(result.request_id)
        return results

    def wake_s(self, now: float) -> float | None:
        """When to run at the latest; None: nobody waits."""
        if not len(self._queue):
            return None
        now_ms = now * 1000.0
        coming_ms = [
            end_ms for end_ms in self._books.own_prefill_end_ms.tolist() if end_ms > now_ms
        ]
        first_s = min(coming_ms, default=math.inf) / 1000.0
        return min(max(first_s, now + MIN_PAUSE_S), now + RUN_EVERY_S)


class _Pass:
    """Arrays are by row of the books; `i` counts waiters."""

    def __init__(
        self,
        placing: Placing,
        rules: Rules,
        waiters: Sequence[Waiter],
        found: Sequence[Candidates],
        table: TableView,
        now: float,
    ) -> None:
        self._placing = placing
        self._rules = rules
        self._waiters = waiters
        self._found = found
        self._table = table
        self._now = now
        self._books = placing.ledger.books
        queries = [waiter.query for waiter in waiters]
        self._prices = placing.ranker.price(queries, found, table.block_size, now)
        self._reserved = Reserved()
        self._stagger_ms = placing.stagger_ms(now)

    def run(self, queue: RouterQueue) -> list[Sent | Refused]:
        order = self._order(queue)
        results: list[Sent | Refused] = []
        for i in order:
            query = self._waiters[i].query
            try:
                sent = self._look_at(i)
            except Overloaded as error:
                results.append(Refused(request_id=query.request_id, error=error))
                continue
            if sent is not None:
                queue.sent(query, sent.uncached_tokens)
                results.append(sent.sent)
        return results

    def _order(self, queue: RouterQueue) -> Sequence[int]:
        if len(self._waiters) == 1:
            return [0]
        best, waiters = self._prices.at_best(), self._waiters
        order = queue.soonest_first(waiters, best.ttft_ms.tolist(), self._now)
        if self._rules.is_holding and best.has_room:
            order = self._last_ones_choose(order, best)
        return queue.in_turns(waiters, order, best.uncached_tokens.tolist())

    def _last_ones_choose(self, order: list[int], best: AtBest) -> list[int]:
        """Of the best rank that waits."""
        ranks = [waiter.query.rank for waiter in self._waiters]
        best_rank = min(ranks)
        members = [i for i in order if ranks[i] == best_rank]
        if len(members) > MOST_PER_WORKER * len(self._books):
            return order
        wishes = self._wishes(best)
        others = [i for i in order if ranks[i] != best_rank]
        ready_ms = self._ready_ms(members, wishes)
        # A tenant's long one would use up the turn of its short ones.
        is_longest_first = len({self._waiters[i].query.tenant for i in members}) == 1
        return last_ones_choose(members, wishes, ready_ms, is_longest_first) + others

    def _wishes(self, best: AtBest) -> list[Wish]:
        limits_ms = [waiter.query.max_ttft_ms for waiter in self._waiters]
        allowed_ms = np.array([math.inf if limit is None else limit for limit in limits_ms])
        waited_ms = np.array([waiter.waited_ms(self._now) for waiter in self._waiters])
        late_ms, left_ms = best.ttft_ms + waited_ms, allowed_ms - waited_ms
        columns = (best.service_ms, late_ms, left_ms, best.is_tied)
        return [Wish(*own) for own in zip(*(v.tolist() for v in columns), strict=True)]

    def _ready_ms(self, members: Sequence[int], wishes: Sequence[Wish]) -> list[float]:
        """Until each worker has done what is tied to it and can start another one, by row; 0: now,
        inf: not all may go there."""
        books = self._books
        least_ms = np.where(books.num_unstarted > 0.0, 1000.0 * MIN_PAUSE_S, 0.0)
        ready_ms = np.maximum(books.prefill_end_ms - 1000.0 * self._now, least_ms)
        tied_ms = np.zeros(len(books))
        for i in members:
            rows = self._prices.rows_of(i)
            if wishes[i].is_tied:
                costs = self._prices.of(i)
                row = int(rows[(costs.start_ms + costs.service_ms + tied_ms)[rows].argmin()])
                tied_ms[row] += costs.service_ms[row]
            elif len(rows) < len(books):
                ready_ms[np.delete(books.all_rows, rows)] = math.inf
        return list((ready_ms + tied_ms).tolist())

    def _look_at(self, i: int) -> _Started | None:
        """Send it or let it wait. Raises Overloaded if its first token would be late anywhere."""
        waiter, found = self._waiters[i], self._found[i]
        query, is_holding = waiter.query, self._is_holding(waiter.query)
        must_wait = is_holding and len(self._reserved.rows) == len(self._books)
        if must_wait and query.max_ttft_ms is None:
            return None
        costs = self._reserved.after(self._prices.of(i))
        if query.max_ttft_ms is not None:
            left_ms = query.max_ttft_ms - waiter.waited_ms(self._now)
            found = self._placing.in_time(found, costs, left_ms)
        if must_wait:
            return None
        choice = self._placing.choose(query, self._table, found, costs, self._stagger_ms, self._now)
        if not is_holding or self._may_start(query.rank, choice.row, costs):
            return self._send(query, found, costs, choice)
        self._reserve(query, choice.row, costs)
        return None

    def _is_holding(self, query: Query) -> bool:
        return self._rules.is_holding and query.pinned is None

    def _may_start(self, rank: int, row: int, costs: Costs) -> bool:
        """Whether the worker can start a request with such costs."""
        if row in self._reserved.rows:
            return False
        worker = self._books.workers[row]
        passed = self._placing.ledger.rank_book.passed_by(rank, [worker]).at(0)
        rules, now_ms = self._rules, self._now * 1000.0
        return may_start(row, costs, self._books, passed, rules.shared_start_tokens, now_ms)

    def _reserve(self, query: Query, row: int, costs: Costs) -> None:
        """It waits for this worker: for its time, or only for blocks of its cache."""
        self._reserved.rows.add(row)
        if costs.room_ms[row] > 0.0:
            tokens = query.num_tokens + self._placing.ranker.output_tokens(query)
            self._prices.promise(row, tokens / self._table.block_size)
        else:
            self._reserved.add_ms(row, costs)

    def _send(self, query: Query, found: Candidates, costs: Costs, choice: Choice) -> _Started:
        placing, table, now = self._placing, self._table, self._now
        placed = placing.placed(query, table, found, costs, choice)
        piece = piece_tokens(
            query.num_tokens,
            placed.predicted_cached_tokens,
            table.block_size,
            0 if query.is_whole else self._rules.slice_tokens,
        )
        service = costs.service_at(choice.row)
        max_ahead_tokens = None
        if not query.is_settled and query.pinned is None:
            max_ahead_tokens = placing.max_ahead_tokens(choice, self._rules.shared_start_tokens)
        if piece is not None:
            hashes = query.hashes[: piece // table.block_size]
            query = msgspec.structs.replace(query, num_tokens=piece, hashes=hashes)
            service = placing.ranker.service_at(choice.row, query, found, table.block_size)
            placed = msgspec.structs.replace(placed, predicted_service_ms=service.ms)
        placing.reserve(query, table, found, service, choice, now)
        self._prices.books_changed()
        sent = Sent(
            request_id=query.request_id,
            placed=placed,
            num_tokens=piece,
            max_ahead_tokens=max_ahead_tokens,
        )
        return _Started(sent, service.uncached_tokens)


class _Started(NamedTuple):
    sent: Sent
    uncached_tokens: float
