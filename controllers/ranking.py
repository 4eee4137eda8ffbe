"""Prices requests on workers: what of each is cached where, and what it would cost there.

Puts table, predictions, books and curve together; chooses nothing and changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from controllers.at_best import AtBest, at_best, together
from controllers.blind import Rows
from controllers.candidates import Candidates, find_candidates
from controllers.costs import Costs, Service, Work, cost_of, service_on, work_of
from controllers.errors import NotReady
from controllers.ledger import Ledger
from controllers.loads import BusyPrice, Loads, Weights, loads_of, share_ahead, steady_of
from controllers.numbers import Floats, Numbers, constant
from controllers.placement_types import PlacementSettings, Query, TableView
from controllers.predictions import Predictions
from controllers.rank_book import PASSES_NONE


class Ranker:
    """`max_running`: requests that a worker runs together."""

    def __init__(
        self,
        ledger: Ledger,
        predictions: Predictions,
        settings: PlacementSettings,
        max_running: float,
    ) -> None:
        self._ledger = ledger
        self._predictions = predictions
        self._settings = settings
        self._beta = constant(settings.beta)
        self.busy_price = BusyPrice(settings.theta)
        self._max_running = max_running

    def find(
        self, query: Query, table: TableView, now: float, exclude: Collection[str]
    ) -> Candidates:
        """Raises NotReady if every worker is excluded or none is known."""
        books = self._ledger.books
        found = find_candidates(query, table, books, self._predictions, exclude, now)
        if not len(found.rows):
            raise NotReady(f"none of {len(books)} workers can take the request")
        return found

    def pinned_rows(self, pinned: str, rows: Rows) -> Rows:
        """All of them if it is none of them."""
        own = rows[rows == self._ledger.books.row(pinned)]
        return own if len(own) else rows

    def price(
        self, queries: Sequence[Query], found: Sequence[Candidates], block_size: int, now: float
    ) -> Prices:
        """`found[i]` are the candidates of `queries[i]`."""
        return Prices(self, queries, found, block_size, now)

    def price_one(self, query: Query, found: Candidates, block_size: int, now: float) -> Costs:
        """By row of the books."""
        weights = self.weights()
        loads = self.loads(query.rank, block_size, now, weights)
        return self.costs(self.work_of_one(query, found, block_size), loads, weights)

    def service_at(self, row: int, query: Query, found: Candidates, block_size: int) -> Service:
        """On one worker."""
        ledger, lower = self._ledger, found.lower_blocks
        work = self._work_of(
            query,
            block_size,
            float(found.cached_blocks[row]),
            None if lower is None else float(lower[row]),
        )
        passed = ledger.rank_book.passed_by(query.rank, [ledger.books.workers[row]])
        if passed is PASSES_NONE:
            steady = ledger.steady_loads.at(row, ledger.reference_blocks)
        else:
            entries, reference = ledger.books.at(row), ledger.reference_blocks
            steady = steady_of(entries, ledger.model, reference, passed.at(0))
        return service_on(work, steady, ledger.model)

    def backlog_ms(self, rank: int, block_size: int, now: float) -> Floats:
        """By row of the books: known work that such a request comes after."""
        return np.asarray(self.loads(rank, block_size, now, self.weights()).backlog_ms)

    def loads(self, rank: int, block_size: int, now: float, weights: Weights) -> Loads:
        """By row of the books."""
        ledger, books, now_ms = self._ledger, self._ledger.books, now * 1000.0
        ends_ms, busy = books.prefill_end_ms, books.busy(now_ms)
        passed = ledger.rank_book.passed_by(rank, books.workers)
        if passed is PASSES_NONE:
            steady = ledger.steady_loads.of_all(ledger.reference_blocks)
            return loads_of(steady, ends_ms, busy, weights, block_size, now_ms)
        steady = steady_of(books.entries, ledger.model, ledger.reference_blocks, passed)
        ahead = share_ahead(books.entries, passed)
        return loads_of(steady, ends_ms, busy, weights, block_size, now_ms, ahead)

    def costs(self, work: Work, loads: Loads, weights: Weights) -> Costs:
        return cost_of(work, loads, self._ledger.model, weights)

    def work(self, queries: Sequence[Query], found: Sequence[Candidates], block_size: int) -> Work:
        if len(queries) == 1:
            return self.work_of_one(queries[0], found[0], block_size)
        model, onboard_ms = self._ledger.model, self._onboard_ms(found)
        num_tokens = np.array([[query.num_tokens] for query in queries], np.float64)
        output_tokens = np.array([[self.output_tokens(query)] for query in queries], np.float64)
        cached_blocks = np.array([own.cached_blocks for own in found])
        return work_of(model, block_size, num_tokens, output_tokens, cached_blocks, onboard_ms)

    def work_of_one(self, query: Query, found: Candidates, block_size: int) -> Work:
        """In one dimension: equal shapes take a sixth of the time."""
        cached = found.cached_blocks if found.best_blocks else 0.0
        return self._work_of(query, block_size, cached, found.lower_blocks)

    def _work_of(
        self, query: Query, block_size: int, cached_blocks: Numbers, lower_blocks: Numbers | None
    ) -> Work:
        per_block_ms = self._settings.host_onboard_ms_per_block
        return work_of(
            self._ledger.model,
            block_size,
            float(query.num_tokens),
            float(self.output_tokens(query)),
            cached_blocks,
            None if lower_blocks is None else lower_blocks * per_block_ms,
        )

    def _onboard_ms(self, found: Sequence[Candidates]) -> Floats | None:
        if all(own.lower_blocks is None for own in found):
            return None
        none = np.zeros(len(self._ledger.books))
        lower = [none if own.lower_blocks is None else own.lower_blocks for own in found]
        return np.array(lower) * self._settings.host_onboard_ms_per_block

    def weights(self) -> Weights:
        completions = self._ledger.completions
        return Weights(
            beta=self._beta,
            price=self.busy_price,
            held_ms=completions.held_ms,
            mean_output_tokens=completions.output_tokens,
            reference_blocks=self._ledger.reference_blocks,
            max_running=self._max_running,
        )

    def output_tokens(self, query: Query) -> float:
        """Expected."""
        if query.expected_output_tokens is not None:
            return query.expected_output_tokens
        return self._ledger.completions.expected_tokens(query.request_type)


class Prices:
    """Costs of some requests while some of them are sent: always as the books are now."""

    def __init__(
        self,
        ranker: Ranker,
        queries: Sequence[Query],
        found: Sequence[Candidates],
        block_size: int,
        now: float,
    ) -> None:
        self._ranker = ranker
        self._queries = queries
        self._found = found
        self._block_size = block_size
        self._now = now
        self._weights = ranker.weights()
        self._work = ranker.work(queries, found, block_size)
        self._rank_to_loads: dict[int, Loads] = {}
        self._priced: dict[int, tuple[Costs, int]] = {}  # with others, and which of them it is
        self._promised_blocks: Floats | None = None

    def of(self, index: int) -> Costs:
        """Of `queries[index]`, by row of the books."""
        if index in self._priced:
            costs, at = self._priced[index]
            return costs.of(at)
        work = self._work if len(self._queries) == 1 else self._work.of(index)
        loads = self._loads(self._queries[index].rank)
        return self._ranker.costs(work, loads, self._weights)

    def rows_of(self, index: int) -> Rows:
        """Workers that `queries[index]` may go to: of its candidates the one it is pinned to."""
        rows, pinned = self._found[index].rows, self._queries[index].pinned
        return rows if pinned is None else self._ranker.pinned_rows(pinned, rows)

    def at_best(self) -> AtBest:
        """Of several requests."""
        num, parts, order = len(self._queries), [], []
        for rank, members in _by_rank(self._queries).items():
            work = self._work if len(members) == num else self._work.of_each(members)
            costs = self._ranker.costs(work, self._loads(rank), self._weights)
            for at, i in enumerate(members):
                self._priced[i] = (costs, at)
            parts.append(at_best(costs, [self.rows_of(i) for i in members]))
            order += members
        return parts[0] if len(parts) == 1 else together(parts, order)

    def books_changed(self) -> None:
        """What was worked out is right no longer."""
        self._rank_to_loads.clear()
        self._priced.clear()

    def promise(self, row: int, num_blocks: float) -> None:
        """So many more blocks of a worker are spoken for."""
        if self._promised_blocks is None:
            self._promised_blocks = np.zeros(self._found[0].cached_blocks.shape)
        self._promised_blocks[row] += num_blocks
        self.books_changed()

    def _loads(self, rank: int) -> Loads:
        loads = self._rank_to_loads.get(rank)
        if loads is None:
            loads = self._ranker.loads(rank, self._block_size, self._now, self._weights)
            if self._promised_blocks is not None:
                loads = loads.promise(self._promised_blocks)
            self._rank_to_loads[rank] = loads
        return loads


def _by_rank(queries: Sequence[Query]) -> dict[int, list[int]]:
    """Rank -> indices."""
    members: dict[int, list[int]] = {}
    for i, query in enumerate(queries):
        members.setdefault(query.rank, []).append(i)
    return members
