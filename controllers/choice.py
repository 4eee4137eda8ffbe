"""Which of the candidates: ties, idle fleets, copies of shared prefixes and missing knowledge.

Decides from costs; reserves nothing.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from controllers.blind import BlindPlacement, Rows
from controllers.books import Books, Floats
from controllers.candidates import Candidates
from controllers.costs import Costs
from controllers.hubs import Hubs
from controllers.placement_types import Query, TableView

TIE_MS = 1e-6
# Idle workers whose first tokens would come within this ratio of time take turns, so that no memory
# lies idle.
SIMILAR_TTFT = 2.0

Mask = npt.NDArray[np.bool_]


class Choice(NamedTuple):
    """`is_copy`: sent to a worker without the prefix on purpose. `is_blind`: by hashing, because
    nothing is known of any candidate."""

    row: int
    reason: str
    is_copy: bool = False
    is_blind: bool = False


class Chooser:
    """Cost decides; among equals the least used, then chance."""

    def __init__(self, rng: Random, hubs: Hubs, blind: BlindPlacement) -> None:
        self._rng = rng
        self._hubs = hubs
        self._blind = blind

    def choose(
        self,
        query: Query,
        table: TableView,
        found: Candidates,
        costs: Costs,
        books: Books,
        shares: Floats,
        now_ms: float,
    ) -> Choice:
        """`shares`: of equal workers those with a lower one first."""
        if found.best_blocks == 0 and self._is_blind(table, books, found.rows):
            row = self._blind.choose(query.hashes, found.rows, books.workers, books.num_requests)
            return Choice(row, "stale", is_blind=True)
        idle = _idle(books, now_ms)
        row = self._cheapest(found.rows, found, costs, books, shares, idle, now_ms)
        copy = self._copy_rows(query, table.block_size, found, row, idle)
        if len(copy):
            row = self._cheapest(copy, found, costs, books, shares, idle, now_ms)
        return Choice(row, _reason(table, found, books, row), len(copy) > 0)

    def _is_blind(self, table: TableView, books: Books, rows: Rows) -> bool:
        return all(table.is_stale(books.workers[i]) for i in rows.tolist())

    def _cheapest(
        self,
        rows: Rows,
        found: Candidates,
        costs: Costs,
        books: Books,
        shares: Floats,
        idle: Mask,
        now_ms: float,
    ) -> int:
        cost_ms = costs.cost_ms[rows]
        row = self._any(rows[cost_ms <= cost_ms.min() + TIE_MS])
        if not idle[row]:
            return row
        # Including the start: the mean of others' requests stays above 0 for seconds, and differs.
        ttft_ms = costs.start_ms + costs.service_ms
        is_similar = (
            idle[rows]
            & (found.cached_blocks[rows] == found.cached_blocks[row])
            & (ttft_ms[rows] <= SIMILAR_TTFT * ttft_ms[row])
        )
        similar = rows[is_similar]
        similar = similar[shares[similar] == shares[similar].min()]
        booked = books.booked(now_ms)[similar]
        return self._any(similar[booked <= booked.min()])

    def _copy_rows(
        self, query: Query, block_size: int, found: Candidates, row: int, idle: Mask
    ) -> Rows:
        """Idle workers that should get a copy of the prefix that the chosen worker has."""
        depth = int(found.cached_blocks[row])
        if not 0 < depth < len(query.hashes):
            return found.rows[:0]
        if not self._hubs.is_copy_due(query.hashes[depth - 1], depth * block_size):
            return found.rows[:0]
        is_without = idle[found.rows] & (found.cached_blocks[found.rows] < depth)
        return found.rows[is_without]

    def _any(self, rows: Rows) -> int:
        return int(rows[0]) if len(rows) == 1 else int(self._rng.choice(rows.tolist()))


def _idle(books: Books, now_ms: float) -> Mask:
    return books.is_free() & (books.prefill_end_ms <= now_ms)


def _reason(table: TableView, found: Candidates, books: Books, row: int) -> str:
    if found.cached_blocks[row] > found.overlap_blocks[row]:
        return "predicted"
    if found.cached_blocks[row] > 0:
        return "overlap"
    if table.is_stale(books.workers[row]):
        return "stale"
    states = (table.workers.get(worker) for worker in books.workers)
    return "load" if any(s is not None and s.num_blocks > 0 for s in states) else "cold"
