"""Prices requests on workers: what of each is cached where, and what it would cost there.

Puts table, predictions, books and curve together; chooses nothing and changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from controllers.candidates import Candidates, find_candidates
from controllers.costs import Costs, Loads, Weights, Work, cost_of, loads_of, work_of
from controllers.errors import NotReady
from controllers.ledger import Ledger
from controllers.numbers import Floats
from controllers.placement_types import PlacementSettings, Query, TableView
from controllers.predictions import Predictions


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

    def price(
        self, queries: Sequence[Query], found: Sequence[Candidates], block_size: int, now: float
    ) -> Prices:
        """`found[i]` are the candidates of `queries[i]`."""
        return Prices(self, queries, found, block_size, now)

    def price_one(self, query: Query, found: Candidates, block_size: int, now: float) -> Costs:
        """By row of the books."""
        weights = self.weights()
        loads = self.loads(query.rank, block_size, now, weights)
        return self.costs(self.work([query], [found], block_size), loads, weights)

    def price_at(
        self, row: int, query: Query, found: Candidates, block_size: int, now: float
    ) -> Costs:
        """On one worker, as numbers."""
        weights = self.weights()
        loads = self.loads_at(row, query.rank, block_size, now, weights)
        return self.costs(self.work([query], [found], block_size).at(row), loads, weights)

    def backlog_ms(self, rank: int, block_size: int, now: float) -> Floats:
        """By row of the books: known work that such a request comes after."""
        return np.asarray(self.loads(rank, block_size, now, self.weights()).backlog_ms)

    def loads(self, rank: int, block_size: int, now: float, weights: Weights) -> Loads:
        """By row of the books."""
        ledger = self._ledger
        passed = ledger.rank_book.passed_by(rank, ledger.books.workers)
        view = ledger.books.view(now * 1000.0)
        return loads_of(view, ledger.model, weights, block_size, now * 1000.0, passed)

    def loads_at(self, row: int, rank: int, block_size: int, now: float, weights: Weights) -> Loads:
        """Of one worker, as numbers: a quarter of the time."""
        ledger = self._ledger
        passed = ledger.rank_book.passed_by(rank, [ledger.books.workers[row]])
        view = ledger.books.view(now * 1000.0).at(row)
        return loads_of(view, ledger.model, weights, block_size, now * 1000.0, passed.at(0))

    def costs(self, work: Work, loads: Loads, weights: Weights) -> Costs:
        return cost_of(work, loads, self._ledger.model, weights)

    def work(self, queries: Sequence[Query], found: Sequence[Candidates], block_size: int) -> Work:
        """A single one is priced in one dimension: equal shapes take a sixth of the time."""
        model = self._ledger.model
        onboard_ms = self._onboard_ms(found)
        if len(queries) == 1:
            (query,) = queries
            tokens, output = float(query.num_tokens), float(self.output_tokens(query))
            lower_ms = None if onboard_ms is None else onboard_ms[0]
            return work_of(model, block_size, tokens, output, found[0].cached_blocks, lower_ms)
        num_tokens = np.array([[query.num_tokens] for query in queries], np.float64)
        output_tokens = np.array([[self.output_tokens(query)] for query in queries], np.float64)
        cached_blocks = np.array([own.cached_blocks for own in found])
        return work_of(model, block_size, num_tokens, output_tokens, cached_blocks, onboard_ms)

    def _onboard_ms(self, found: Sequence[Candidates]) -> Floats | None:
        if all(own.lower_blocks is None for own in found):
            return None
        none = np.zeros(len(self._ledger.books))
        lower = [none if own.lower_blocks is None else own.lower_blocks for own in found]
        return np.array(lower) * self._settings.host_onboard_ms_per_block

    def weights(self) -> Weights:
        completions = self._ledger.completions
        return Weights(
            beta=self._settings.beta,
            theta=self._settings.theta,
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


class _Group(NamedTuple):
    """Requests of one rank: what one of them passes at the gates, all of them do."""

    rank: int
    work: Work
    costs: Costs  # of a single request one-dimensional
    members: list[int]


class Prices:
    """Costs of some requests, kept right while some of them are sent."""

    def __init__(
        self,
        ranker: Ranker,
        queries: Sequence[Query],
        found: Sequence[Candidates],
        block_size: int,
        now: float,
    ) -> None:
        self._ranker = ranker
        self._found = found
        self._block_size = block_size
        self._now = now
        self._weights = ranker.weights()
        self._groups: list[_Group] = []
        self._place: dict[int, tuple[_Group, int]] = {}
        for rank, members in _by_rank(queries).items():
            work = ranker.work(
                [queries[i] for i in members], [found[i] for i in members], block_size
            )
            loads = ranker.loads(rank, block_size, now, self._weights)
            costs = ranker.costs(work, loads, self._weights)
            if len(members) > 1:
                costs = _for_each(costs)
            group = _Group(rank, work, costs, members)
            self._groups.append(group)
            self._place.update({i: (group, at) for at, i in enumerate(members)})

    def of(self, index: int) -> Costs:
        """Of `queries[index]`, by row of the books."""
        group, at = self._place[index]
        return group.costs.of(at) if len(group.members) > 1 else group.costs

    def at_best(self) -> tuple[list[float], list[float]]:
        """Of each request, on the best of its candidates: ms to the first token, and tokens that
        it would have computed."""
        ttft_ms, uncached = [0.0] * len(self._found), [0.0] * len(self._found)
        for group in self._groups:
            costs = group.costs
            self._put_least(group.members, costs.start_ms + costs.service_ms, ttft_ms)
            self._put_least(group.members, costs.uncached_tokens, uncached)
        return ttft_ms, uncached

    def _put_least(self, members: Sequence[int], values: Floats, least_of: list[float]) -> None:
        by_member = np.atleast_2d(values)
        least = by_member.min(axis=1).tolist()
        for at, i in enumerate(members):
            rows = self._found[i].rows
            is_every_row = len(rows) == by_member.shape[1]
            least_of[i] = least[at] if is_every_row else float(by_member[at, rows].min())

    def refresh(self, row: int, promised_blocks: float = 0.0) -> None:
        """The books of this worker have changed. `promised_blocks` of it are spoken for."""
        for group in self._groups:
            loads = self._ranker.loads_at(
                row, group.rank, self._block_size, self._now, self._weights
            )
            if promised_blocks:
                loads = loads.promise(promised_blocks)
            column = self._ranker.costs(group.work.at(row), loads, self._weights)
            for values, new in zip(group.costs, column, strict=True):
                values[..., row] = new


def _by_rank(queries: Sequence[Query]) -> dict[int, list[int]]:
    """Rank -> indices."""
    members: dict[int, list[int]] = {}
    for i, query in enumerate(queries):
        members.setdefault(query.rank, []).append(i)
    return members


def _for_each(costs: Costs) -> Costs:
    """With all values by request and worker, to be written to."""
    shape = costs.service_ms.shape
    return Costs(*[v if v.shape == shape else np.broadcast_to(v, shape).copy() for v in costs])
