"""Prices requests on workers: what of each is cached where, and what it would cost there.

Puts table, predictions, books and curve together; chooses nothing and changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from controllers.candidates import Candidates, find_candidates
from controllers.costs import Costs, Loads, Weights, Work, cost_of, loads_of
from controllers.errors import NotReady
from controllers.ledger import Ledger
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

    def loads(self, rank: int, block_size: int, now: float) -> Loads:
        ledger = self._ledger
        passed = ledger.rank_book.passed_by(rank, ledger.books.workers)
        return loads_of(
            ledger.books, ledger.model, self.weights(), block_size, now * 1000.0, passed
        )

    def costs(self, work: Work, loads: Loads) -> Costs:
        return cost_of(work, loads, self._ledger.model, self.weights())

    def work(self, queries: Sequence[Query], found: Sequence[Candidates], block_size: int) -> Work:
        num_tokens = np.array([[query.num_tokens] for query in queries], np.float64)
        output_tokens = np.array([[self.output_tokens(query)] for query in queries])
        lower_blocks = np.stack([own.lower_blocks for own in found])
        return Work(
            num_tokens=num_tokens,
            block_size=block_size,
            cached_blocks=np.stack([own.cached_blocks for own in found]),
            onboard_ms=lower_blocks * self._settings.host_onboard_ms_per_block,
            output_tokens=output_tokens,
        )

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
    costs: Costs


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
        self._block_size = block_size
        self._now = now
        self._groups: list[_Group] = []
        self._place: dict[int, tuple[_Group, int]] = {}
        for rank in sorted({query.rank for query in queries}):
            members = [i for i, query in enumerate(queries) if query.rank == rank]
            work = ranker.work(
                [queries[i] for i in members], [found[i] for i in members], block_size
            )
            loads = ranker.loads(rank, block_size, now)
            group = _Group(rank, work, ranker.costs(work, loads))
            self._groups.append(group)
            self._place.update({i: (group, at) for at, i in enumerate(members)})

    def of(self, index: int) -> Costs:
        """Of `queries[index]`, by row of the books."""
        group, at = self._place[index]
        return group.costs.of(at)

    def refresh(self, row: int, promised_blocks: float = 0.0) -> None:
        """The books of this worker have changed. `promised_blocks` of it are spoken for."""
        for group in self._groups:
            loads = self._ranker.loads(group.rank, self._block_size, self._now).at(row)
            if promised_blocks:
                loads = loads._replace(held_blocks=loads.held_blocks + promised_blocks)
            column = self._ranker.costs(group.work.at(row), loads)
            for values, new in zip(group.costs, column, strict=True):
                values[:, row] = new[:, 0]
