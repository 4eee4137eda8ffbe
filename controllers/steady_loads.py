"""What is steady of the loads of workers, kept from one decision to the next.

Owns when it is worked out again: for a worker whose row of the books has changed, for all when the
curve has learned. Knows no requests and no time.
"""

from __future__ import annotations

import numpy as np

from controllers.books import Books
from controllers.cost_model import CostModel
from controllers.loads import Steady, steady_of

MAX_ONE_BY_ONE = 3  # more rows than this take longer than all of them at once


class SteadyLoads:
    """For requests that pass nobody at the gates. The only one that empties `books.changed`."""

    def __init__(self, books: Books, model: CostModel) -> None:
        self._books = books
        self._model = model
        self._num_samples = -1  # that the curve had learned from
        self._reference_blocks = 0
        self._values = np.zeros((len(Steady._fields), 0))
        self._steady = Steady(*self._values)

    def of_all(self, reference_blocks: int) -> Steady:
        """By row of the books; right until the next call."""
        self._bring_up_to_date(reference_blocks)
        return self._steady

    def at(self, row: int, reference_blocks: int) -> Steady:
        """Of one worker, as numbers."""
        self._bring_up_to_date(reference_blocks)
        return Steady(*self._values[:, row].tolist())

    def _bring_up_to_date(self, reference_blocks: int) -> None:
        changed, model = self._books.changed, self._model
        if model.num_samples != self._num_samples or reference_blocks != self._reference_blocks:
            self._num_samples, self._reference_blocks = model.num_samples, reference_blocks
            self._work_out_all()
        elif len(changed) > MAX_ONE_BY_ONE or len(self._books) != self._values.shape[1]:
            self._work_out_all()
        else:
            for row in changed:
                own = steady_of(self._books.at(row), model, reference_blocks)
                self._values[:, row] = own
        changed.clear()

    def _work_out_all(self) -> None:
        steady = steady_of(self._books.entries, self._model, self._reference_blocks)
        self._values = np.array(steady)
        self._steady = Steady(*self._values)
