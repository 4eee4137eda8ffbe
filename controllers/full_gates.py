"""Gates that refused just now: a flood is not sent to them again request by request.

Under overload most requests are refused; asking every worker about each of them would take the time
of those that are served.
"""

from __future__ import annotations

from collections.abc import Iterable

# Of the order of the time between two starts at a worker, so that a place that comes free is not
# long unknown; long beside the time in which a flood sends its next request.
REMEMBER_S = 0.1


class FullGates:
    """A refusal holds for the same tenant and rank only: others may find somebody who gives way."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, int, str], float] = {}

    def refused(self, worker: str, rank: int, tenant: str, now: float) -> None:
        if len(self._until) > 1000:
            self._until = {key: end for key, end in self._until.items() if end > now}
        self._until[worker, rank, tenant] = now + REMEMBER_S

    def among(self, workers: Iterable[str], rank: int, tenant: str, now: float) -> set[str]:
        """Those that would refuse."""
        return {w for w in workers if self._until.get((w, rank, tenant), now) > now}
