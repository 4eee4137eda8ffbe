"""Which of the candidates: ties, idle fleets, copies of shared prefixes and missing knowledge.

Decides from costs; reserves nothing.
"""

from __future__ import annotations

import math
from random import Random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from controllers.blind import BlindPlacement, Rows
from controllers.books import Books
from controllers.candidates import Candidates
from controllers.costs import Costs
from controllers.hubs import Hubs
from controllers.numbers import smallest
from controllers.placement_types import Query, TableView

TIE_MS = 1e-6
# Idle workers whose first tokens would come within this ratio of time take turns, so that no memory
# lies idle.
SIMILAR_TTFT = 2.0

Mask = npt.NDArray[np.bool_]


class Choice(NamedTuple):
    """`is_copy`: sent to a worker without the prefix on purpose. `is_blind`: by hashing, because
    nothing is known of any candidate. `spare_ms`: what the next best costs more; inf: it must go
    there."""

    row: int
    reason: str
    is_copy: bool = False
    is_blind: bool = False
    spare_ms: float = math.inf


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
        now_ms: float,
    ) -> Choice:
        if found.best_blocks == 0 and self._is_blind(table, books, found.rows):
            row = self._blind.choose(query.hashes, found.rows, books.workers, books.num_requests)
            return Choice(row, "stale", is_blind=True)
        row = self._cheapest(found.rows, costs)
        depth = int(found.cached_blocks[row])
        is_copy_due = self._is_copy_due(query, depth, table.block_size)
        is_busy = not (is_copy_due or _is_idle_at(books, row, now_ms))
        if is_busy or smallest(books.num_requests) > 0.0:  # nobody is idle in the second case
            return Choice(row, _reason(table, found, books, row))
        idle = books.is_free() & (books.prefill_end_ms <= now_ms)
        row = self._in_turn(row, found.rows, found, costs, books, idle, now_ms)
        copy = _without(depth, found, idle) if is_copy_due else found.rows[:0]
        if len(copy):
            row = self._cheapest(copy, costs)
            row = self._in_turn(row, copy, found, costs, books, idle, now_ms)
        return Choice(row, _reason(table, found, books, row), len(copy) > 0)

    def _is_blind(self, table: TableView, books: Books, rows: Rows) -> bool:
        return all(table.is_stale(books.workers[row]) for row in rows)

    def _cheapest(self, rows: Rows, costs: Costs) -> int:
        cost_ms = costs.cost_ms if len(rows) == len(costs.cost_ms) else costs.cost_ms[rows]
        return self._any(rows[cost_ms <= smallest(cost_ms) + TIE_MS])

    def _in_turn(
        self,
        row: int,
        rows: Rows,
        found: Candidates,
        costs: Costs,
        books: Books,
        idle: Mask,
        now_ms: float,
    ) -> int:
        """If the cheapest one is idle, of those like it the least used."""
        if not idle[row]:
            return row
        # Including the start: the mean of others' requests stays above 0 for seconds, and differs.
        ttft_ms = costs.start_ms + costs.service_ms
        is_similar = (
            idle
            & (found.cached_blocks == found.cached_blocks[row])
            & (ttft_ms <= SIMILAR_TTFT * ttft_ms[row])
        )
        if found.lost_ms is not None:
            is_similar &= found.lost_ms <= found.lost_ms[row] + TIE_MS
        similar = rows[is_similar[rows]]
        booked = books.booked(now_ms)[similar]
        return self._any(similar[booked <= smallest(booked)])

    def _is_copy_due(self, query: Query, depth: int, block_size: int) -> bool:
        """Whether idle workers should get a copy of the prefix that the chosen one has."""
        if not 0 < depth < len(query.hashes):
            return False
        return self._hubs.is_copy_due(query.hashes[depth - 1], depth * block_size)

    def _any(self, rows: Rows) -> int:
        return int(rows[0]) if len(rows) == 1 else int(self._rng.choice(rows.tolist()))


def spare_ms(row: int, rows: Rows, costs: Costs) -> float:
    """What the best of the other candidates costs more; inf: there is no other."""
    others = rows[rows != row]
    if not len(others):
        return math.inf
    return max(0.0, float(costs.cost_ms[others].min() - costs.cost_ms[row]))


def _is_idle_at(books: Books, row: int, now_ms: float) -> bool:
    return books.is_free_at(row) and bool(books.prefill_end_ms[row] <= now_ms)


def _without(depth: int, found: Candidates, idle: Mask) -> Rows:
    """Idle candidates that lack a prefix of this depth."""
    is_without = idle[found.rows] & (found.cached_blocks[found.rows] < depth)
    return found.rows[is_without]


def _reason(table: TableView, found: Candidates, books: Books, row: int) -> str:
    if found.cached_blocks[row] > found.overlap_blocks[row]:
        return "predicted"
    if found.cached_blocks[row] > 0:
        return "overlap"
    if table.is_stale(books.workers[row]):
        return "stale"
    for worker in books.workers:
        state = table.workers.get(worker)
        if state is not None and state.num_blocks > 0:
            return "load"
    return "cold"
