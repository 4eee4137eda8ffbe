"""Whom one router of a simulated fleet lets in, and which gates it knows to be full.

Puts together what an ingress of production has for it: `controllers.admission`, with the part of
the gates' bounds that is this router's, and `controllers.full_gates`. Times are in ms.
"""

from __future__ import annotations

from collections.abc import Collection

from controllers.admission import Admission, AdmissionSettings, bounds_of
from controllers.errors import Overloaded
from controllers.full_gates import FullGates
from controllers.placement_types import Query
from controllers.simulation.prompt_blocks import PrefixTable, PromptBlocks
from controllers.simulation.settings import FleetSettings
from controllers.simulation.standing import Standings
from controllers.simulation.trace import Request
from controllers.waiting import Waiting

UNBOUNDED = AdmissionSettings(max_waiting_requests=1 << 30)


class Entrance:
    """`settings.admission` None: all are let in."""

    def __init__(
        self, settings: FleetSettings, standings: Standings, table: PrefixTable, per: int
    ) -> None:
        self._settings = settings
        self._standings = standings
        self._table = table
        self._per = per
        self._workers: frozenset[str] = frozenset()
        self._full_gates = FullGates()
        self._turned_away: dict[str, set[str]] = {}  # request id -> workers that were full
        self._limits = {} if settings.admission is None else settings.tenants
        self._admission = Admission(self._bounds(1), self._limits, settings.num_routers)

    def set_workers(self, workers: Collection[str], now: float) -> None:
        """While there is none, as many as before are waited for."""
        num_before, self._workers = len(self._workers), frozenset(workers)
        if workers and len(workers) != num_before:
            bounds, num_routers = self._bounds(len(workers)), self._settings.num_routers
            self._admission.configure(bounds, self._limits, now / 1e3, num_routers)

    def enter(self, request: Request, now: float) -> list[int]:
        """Let it in; returns the numbers of those that give way to it, and wait no longer. Raises
        RateLimited or Overloaded."""
        standing = self._standings.of(request)
        item = Waiting(
            request_id=str(request.number),
            uncached_tokens=self._uncached_tokens(request, now),
            submitted_s=now / 1e3,
            rank=standing.rank,
            tenant=standing.tenant,
            weight=standing.weight,
        )
        return [int(displaced.request_id) for displaced in self._admission.enter(item)]

    def started(self, request: Request, num_cached_tokens: int, now: float) -> None:
        """Its first token came."""
        uncached = request.num_tokens - num_cached_tokens
        self._admission.started(str(request.number), uncached, now / 1e3)

    def left(self, request: Request, has_started: bool, now: float) -> None:
        """It has ended, or was refused."""
        request_id = str(request.number)
        self._admission.leave(request_id, has_started, now / 1e3)
        self._turned_away.pop(request_id, None)

    def turned_away(self, request: Request, worker: str, now: float) -> None:
        """The worker's gate did not take or keep it."""
        standing = self._standings.of(request)
        self._full_gates.refused(worker, standing.rank, standing.tenant, now / 1e3)
        self._turned_away.setdefault(str(request.number), set()).add(worker)

    def excluded(self, query: Query, now_s: float) -> set[str]:
        """Workers that may not take it now. Raises Overloaded if all gates are full."""
        asked = self._turned_away.get(query.request_id, set())
        left = self._workers - asked
        full = self._full_gates.among(left, query.rank, query.tenant, now_s)
        if full and full == left:
            raise Overloaded("every worker has as much waiting as it may")
        return asked | full

    def _bounds(self, num_gates: int) -> AdmissionSettings:
        settings = self._settings
        if settings.admission is None:
            return UNBOUNDED
        return bounds_of(settings.admission, settings.gate_bounds, num_gates / settings.num_routers)

    def _uncached_tokens(self, request: Request, now: float) -> int:
        """As far as anything depends on it."""
        if not self._admission.needs_tokens(request.tenant, now / 1e3):
            return 0
        hashes = PromptBlocks(request.trace_blocks, request.num_blocks, self._per)
        overlaps = self._table.overlap(hashes).values()
        best = max((overlap.num_blocks for overlap in overlaps), default=0)
        return request.num_tokens - best * self._table.block_size
