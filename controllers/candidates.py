"""The workers that may take a request, and how much of its prompt each has."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from controllers.blind import Rows
from controllers.books import Books
from controllers.numbers import Floats
from controllers.placement_types import Query, TableView
from controllers.predictions import Predictions


class Candidates(NamedTuple):
    """`rows` are rows of the books; the arrays have one value for each row of the books, 0 for
    those that are no candidates. `lost_ms`: of work that comes later, because there is no room to
    keep the prompt; None: nowhere any."""

    rows: Rows
    overlap_blocks: Floats  # the table's
    cached_blocks: Floats  # with those predicted
    lower_blocks: Floats | None  # of the overlap, not in the first medium; None: none at all
    best_blocks: int  # the most that any candidate has
    lost_ms: Floats | None = None


def find_candidates(
    query: Query,
    table: TableView,
    books: Books,
    predictions: Predictions,
    exclude: Collection[str],
    now: float,
) -> Candidates:
    """Every worker of the books that is not excluded. A stale worker has only what is predicted."""
    hashes, num_rows = query.hashes, len(books)
    overlap, cached = np.zeros(num_rows), np.zeros(num_rows)
    lower: Floats | None = None
    best_blocks = 0
    overlaps, states = table.overlap(hashes), table.workers
    expected = predictions.of_first(hashes[0]) if hashes else ()
    for worker in {*overlaps, *expected} if expected else overlaps:
        row = books.row(worker)
        if row is None or worker in exclude:
            continue
        known, depth = overlaps.get(worker), 0
        if known is not None:
            overlap[row] = depth = known.num_blocks
            if known.num_gpu < depth:
                lower = np.zeros(num_rows) if lower is None else lower
                lower[row] = depth - known.num_gpu
        if worker in expected:
            state = states.get(worker)
            epoch = None if state is None else state.epoch
            depth = predictions.extend(worker, epoch, hashes, depth, now)
        cached[row] = depth
        if depth > best_blocks:
            best_blocks = depth
    return Candidates(_rows(books, exclude), overlap, cached, lower, best_blocks)


def _rows(books: Books, exclude: Collection[str]) -> Rows:
    if not exclude:
        return books.all_rows
    return np.array([i for i, worker in enumerate(books.workers) if worker not in exclude], np.intp)


def epoch_of(table: TableView, worker: str) -> int | None:
    """None: the table has not heard of it."""
    state = table.workers.get(worker)
    return None if state is None else state.epoch
