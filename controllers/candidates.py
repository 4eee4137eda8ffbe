"""The workers that may take a request, and how much of its prompt each has."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from controllers.blind import Rows
from controllers.books import Books, Floats
from controllers.placement_types import Query, TableView
from controllers.predictions import Predictions


class Candidates(NamedTuple):
    """`rows` are rows of the books; the arrays have one value for each row of the books, 0 for
    those that are no candidates."""

    rows: Rows
    overlap_blocks: Floats  # the table's
    cached_blocks: Floats  # with those predicted
    lower_blocks: Floats  # of the overlap, not in the first medium

    @property
    def best_blocks(self) -> int:
        """The most that any candidate has."""
        return int(self.cached_blocks.max(initial=0.0))


def find_candidates(
    query: Query,
    table: TableView,
    books: Books,
    predictions: Predictions,
    exclude: Collection[str],
    now: float,
) -> Candidates:
    """Every worker of the books that is not excluded. A stale worker has only what is predicted."""
    overlap, cached, lower = np.zeros((3, len(books)))
    overlaps = table.overlap(query.hashes)
    expected = predictions.may_start_with(query.hashes[0]) if query.hashes else ()
    for worker in {**dict.fromkeys(overlaps), **dict.fromkeys(expected)}:
        row = books.row(worker)
        if row is None or worker in exclude:
            continue
        known = overlaps.get(worker)
        if known is not None and not table.is_stale(worker):
            overlap[row] = known.num_blocks
            lower[row] = known.num_blocks - known.num_gpu
        depth, epoch = int(overlap[row]), epoch_of(table, worker)
        cached[row] = predictions.extend(worker, epoch, query.hashes, depth, now)
    rows = np.array([i for i, worker in enumerate(books.workers) if worker not in exclude], np.intp)
    return Candidates(rows, overlap, cached, lower)


def epoch_of(table: TableView, worker: str) -> int | None:
    """None: the table has not heard of it."""
    state = table.workers.get(worker)
    return None if state is None else state.epoch
