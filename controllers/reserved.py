"""Time of the workers that is kept, for the rest of a pass, for requests that wait for them."""

from __future__ import annotations

from controllers.costs import Costs
from controllers.numbers import Floats


class Reserved:
    """`rows`: of the books, those that somebody waits for. Mostly there is none."""

    def __init__(self) -> None:
        self.rows: set[int] = set()
        self._ms: Floats | None = None

    def add_ms(self, row: int, costs: Costs) -> None:
        """For a request with such costs."""
        if self._ms is None:
            self._ms = 0.0 * costs.service_ms
        self._ms[row] += costs.service_ms[row]

    def after(self, costs: Costs) -> Costs:
        """Of a request that comes after them."""
        if self._ms is None:
            return costs
        return costs._replace(start_ms=costs.start_ms + self._ms, cost_ms=costs.cost_ms + self._ms)
