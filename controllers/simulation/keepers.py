"""The keepers of all routers of a simulated fleet, if its retention is learned; else nothing.

Requests go to the routers in turn, and so to their keepers. Times are in ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controllers.events import ints_of
from controllers.records import PrefixUse
from controllers.retention import Retention
from controllers.simulation.keeper import Keeper
from controllers.simulation.late import Late
from controllers.simulation.settings import FleetSettings
from controllers.simulation.trace import Request


class Keepers:
    """`all` by router; empty if nothing is learned. `per`: blocks of a trace block."""

    def __init__(self, settings: FleetSettings, per: int) -> None:
        policy, num = settings.retention, settings.num_routers
        self._late: Late[PrefixUse] = Late(settings.booking_lag_s * 1e3)
        self.all: list[Keeper] = []
        if policy is not None and policy.policy == "learned":
            late = self._late if num > 1 and settings.shares_bookings else None
            self.all = [Keeper(index, policy, per, late) for index in range(num)]
        self._late.listeners = [keeper.heard for keeper in self.all]

    def __bool__(self) -> bool:
        return bool(self.all)

    def of(self, number: int) -> Keeper | None:
        """That of a request, by its number."""
        return self.all[number % len(self.all)] if self.all else None

    def set_workers(self, worker_to_blocks: Mapping[str, int]) -> None:
        for keeper in self.all:
            keeper.set_workers(worker_to_blocks)

    def retention(self, request: Request, worker: str, now: float) -> Retention | None:
        """It goes to this worker now. None: what the tiers say."""
        keeper = self.of(request.number)
        return None if keeper is None else keeper.retention(request, worker, now)

    def finished(self, request: Request, num_cached_tokens: int | None, now: float) -> None:
        keeper = self.of(request.number)
        if keeper is not None:
            keeper.finished(request, num_cached_tokens, now)

    def removed(self, worker: str, hexes: Sequence[str], now: float) -> None:
        hashes = ints_of(hexes) if self.all else []
        for keeper in self.all:
            keeper.removed(worker, hashes, now)

    def tick(self, now: float) -> None:
        for keeper in self.all:
            keeper.tick(now)

    def deliver(self, now: float) -> None:
        """What keepers have told each other, as far as it has arrived."""
        self._late.deliver(now)
