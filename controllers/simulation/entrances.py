"""The entrances of all routers of a simulated fleet, if anybody may be refused; else nothing.

Requests go to the routers in turn, and so to their entrances. Times are in ms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from controllers.errors import Overloaded
from controllers.placement_types import Query
from controllers.simulation.entrance import Entrance
from controllers.simulation.prompt_blocks import PrefixTable
from controllers.simulation.settings import FleetSettings
from controllers.simulation.standing import Standings
from controllers.simulation.trace import Request

Excluded: TypeAlias = Callable[[Query, float], set[str]]


class Entrances:
    """By router; none without bounds and deadlines. `per`: blocks of a trace block."""

    def __init__(
        self, settings: FleetSettings, standings: Standings, table: PrefixTable, per: int
    ) -> None:
        has_any = settings.admission is not None or standings.has_deadlines
        num = settings.num_routers if has_any else 0
        self._all = [Entrance(settings, standings, table, per) for _ in range(num)]

    def excluded_of(self, router: int) -> Excluded | None:
        """What placement asks at every pass. None: nothing is excluded."""
        return self._all[router].excluded if self._all else None

    def set_workers(self, workers: Collection[str], now: float) -> None:
        for entrance in self._all:
            entrance.set_workers(workers, now)

    def enter(self, request: Request, now: float) -> Sequence[int]:
        """Numbers of the requests that are refused for it, or its own."""
        if not self._all:
            return ()
        try:
            return self._of(request).enter(request, now)
        except Overloaded:
            return (request.number,)

    def started(self, request: Request, num_cached_tokens: int, now: float) -> None:
        if self._all:
            self._of(request).started(request, num_cached_tokens, now)

    def left(self, request: Request, has_started: bool, now: float) -> None:
        if self._all:
            self._of(request).left(request, has_started, now)

    def turned_away(self, request: Request, worker: str, now: float) -> None:
        self._of(request).turned_away(request, worker, now)

    def _of(self, request: Request) -> Entrance:
        return self._all[request.number % len(self._all)]
