"""The router of production in a simulated fleet. Times are in ms."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import NamedTuple

import msgspec

from controllers.booking_sums import DONE, FIRST_TOKEN, SENT
from controllers.cost_model import CostModel
from controllers.events import Load
from controllers.handbacks import Handbacks
from controllers.pieces import Pieces
from controllers.placement import Placement, Query
from controllers.placement import Sent as Decision
from controllers.records import Booking, BookingBatch
from controllers.simulation.booking_bus import BookingBus, router_name
from controllers.simulation.entrances import Excluded
from controllers.simulation.keeper import Keeper
from controllers.simulation.prompt_blocks import PrefixTable, PromptBlocks
from controllers.simulation.result import Floats
from controllers.simulation.routers import Refused, Sent
from controllers.simulation.settings import FleetSettings
from controllers.simulation.standing import Standings
from controllers.simulation.trace import Request


class Around(NamedTuple):
    """What a router knows of the trace, and whom it asks. `per`: blocks of a trace block."""

    requests: Sequence[Request]
    arrival_ms: Floats
    per: int
    standings: Standings
    has_started: Callable[[int], bool]  # by number: its first token came
    pieces: Mapping[int, Pieces]  # by number, of those that had any
    keeper: Keeper | None
    excluded: Excluded | None


class CachelaneRouter:
    """Placement as a router of production has it, which tells the others what it sends."""

    needs_loads = True

    def __init__(
        self,
        index: int,
        settings: FleetSettings,
        around: Around,
        table: PrefixTable,
        rng: Random,
        bus: BookingBus,
    ) -> None:
        self._index = index
        self._around = around
        self._table = table
        self._bus = bus
        self._has_others = settings.num_routers > 1
        self._bookings: dict[str, Booking] = {}
        self._handbacks: dict[str, Handbacks] = {}  # of requests that had any
        self._workers: Collection[str] = ()
        self._max_handbacks = settings.routing.max_handbacks
        self._placement = Placement(
            settings.routing,
            CostModel(settings.max_batched_tokens),
            rng,
            max_running=settings.max_sequences,
            router_id=router_name(index),
            losses=around.keeper,
        )

    @property
    def num_waiting(self) -> int:
        return self._placement.num_waiting

    def set_workers(self, worker_to_blocks: Mapping[str, int]) -> None:
        self._workers = tuple(worker_to_blocks)
        self._placement.set_workers(worker_to_blocks)

    def submit(self, request: Request, now: float) -> None:
        since_s = float(self._around.arrival_ms[request.number]) / 1000.0
        self._placement.submit(self._query(request), now / 1000.0, since_s)

    def decide(self, now: float) -> list[Sent | Refused]:
        now_s = now / 1000.0
        if self._around.excluded is None and not self._handbacks:
            results = self._placement.run(self._table, now_s)
        else:
            results = self._placement.run(self._table, now_s, lambda q: self._excluded(q, now_s))
        return [
            self._sent(result, now)
            if isinstance(result, Decision)
            else Refused(int(result.request_id))
            for result in results
        ]

    def wake_ms(self, now: float) -> float:
        wake_s = self._placement.wake_s(now / 1000.0)
        return math.inf if wake_s is None else 1000.0 * wake_s

    def first_token(self, request: Request, now: float) -> None:
        self._placement.first_token(str(request.number), now / 1000.0)
        self._tell(str(request.number), FIRST_TOKEN, now)

    def handed_back(self, request: Request, now: float) -> None:
        request_id = str(request.number)
        handbacks = self._handbacks.setdefault(request_id, Handbacks())
        handbacks.add(self._bookings[request_id].worker, now / 1000.0)
        self._placement.take_back(request_id, now / 1000.0)
        self._tell(request_id, DONE, now)
        del self._bookings[request_id]
        self.submit(request, now)

    def release(self, request: Request, now: float, output_tokens: int) -> None:
        request_id = str(request.number)
        self._placement.release(request_id, now / 1000.0, output_tokens)
        self._handbacks.pop(request_id, None)
        self._tell(request_id, DONE, now)
        self._bookings.pop(request_id, None)

    def on_load(self, worker: str, load: Load, now: float) -> None:
        self._placement.on_load(worker, load, now / 1000.0)

    def on_bookings(self, batch: BookingBatch, now: float) -> None:
        self._placement.on_bookings(batch, now / 1000.0)

    def beat(self, now: float) -> None:
        """Say that it is there."""
        if self._has_others:
            self._bus.tell(self._index, len(self._bookings), [], now)

    def _query(self, request: Request) -> Query:
        """As an ingress makes it."""
        standing, keeper = self._around.standings.of(request), self._around.keeper
        is_started = self._around.has_started(request.number)
        pieces = self._around.pieces.get(request.number)
        handbacks = self._handbacks.get(str(request.number))
        return Query(
            request_id=str(request.number),
            hashes=PromptBlocks(request.trace_blocks, request.num_blocks, self._around.per),
            num_tokens=request.num_tokens,
            request_type=request.request_type,
            rank=standing.rank,
            tenant=standing.tenant,
            weight=standing.weight,
            max_ttft_ms=None if is_started else standing.max_ttft_ms,
            is_whole=pieces is not None and pieces.is_whole,
            is_again=handbacks is not None,
            is_settled=handbacks is not None and handbacks.num >= self._max_handbacks,
            prompt_use=None if keeper is None else keeper.prompt_use(request),
        )

    def _excluded(self, query: Query, now_s: float) -> Collection[str]:
        others, handbacks = self._around.excluded, self._handbacks.get(query.request_id)
        excluded = set() if others is None else set(others(query, now_s))
        if handbacks is None:
            return excluded
        left = [worker for worker in self._workers if worker not in excluded]
        return excluded | handbacks.avoided(left, now_s)

    def _sent(self, decision: Decision, now: float) -> Sent:
        request_id, placed = decision.request_id, decision.placed
        request = self._around.requests[int(request_id)]
        num_tokens = decision.num_tokens or request.num_tokens
        uncached = max(0, num_tokens - placed.predicted_cached_tokens)
        if self._has_others:
            self._bookings[request_id] = Booking(
                request_id=request_id,
                worker=placed.worker,
                state=SENT,
                prefill_tokens=uncached,
                num_blocks=-(-num_tokens // self._table.block_size),
                rank=self._around.standings.of(request).rank,
                service_ms=placed.predicted_service_ms,
            )
            self._tell(request_id, SENT, now)
        if request_id in self._handbacks:
            self._handbacks[request_id].forgive()
        most = math.inf if decision.max_ahead_tokens is None else decision.max_ahead_tokens
        return Sent(int(request_id), placed.worker, uncached, decision.num_tokens, most)

    def _tell(self, request_id: str, state: str, now: float) -> None:
        booking = self._bookings.get(request_id)
        if booking is None:
            return
        booking = self._bookings[request_id] = msgspec.structs.replace(booking, state=state)
        self._bus.tell(self._index, len(self._bookings), [booking], now)
