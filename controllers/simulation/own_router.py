"""The router of production in a simulated fleet. Times are in ms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random

import msgspec

from controllers.booking_sums import DONE, FIRST_TOKEN, SENT
from controllers.cost_model import CostModel
from controllers.events import Booking, BookingBatch, Load
from controllers.placement import Placement, Query, Refused
from controllers.placement import Sent as Decision
from controllers.simulation.booking_bus import BookingBus, router_name
from controllers.simulation.prompt_blocks import PrefixTable, PromptBlocks
from controllers.simulation.routers import Sent
from controllers.simulation.settings import FleetSettings
from controllers.simulation.trace import Request


class CachelaneRouter:
    """Placement as a router of production has it, which tells the others what it sends."""

    needs_loads = True

    def __init__(
        self,
        index: int,
        settings: FleetSettings,
        table: PrefixTable,
        rng: Random,
        bus: BookingBus,
        per: int,
    ) -> None:
        self._index = index
        self._table = table
        self._bus = bus
        self._per = per
        self._has_others = settings.num_routers > 1
        self._since_s: dict[int, float] = {}  # when requests under way came
        self._num_tokens: dict[str, int] = {}
        self._bookings: dict[str, Booking] = {}
        self._placement = Placement(
            settings.routing,
            CostModel(settings.max_batched_tokens),
            rng,
            max_running=settings.max_sequences,
            router_id=router_name(index),
        )

    def set_workers(self, worker_to_blocks: Mapping[str, int]) -> None:
        self._placement.set_workers(worker_to_blocks)

    def submit(self, request: Request, now: float) -> None:
        query = Query(
            request_id=str(request.number),
            hashes=PromptBlocks(request.trace_blocks, request.num_blocks, self._per),
            num_tokens=request.num_tokens,
            request_type=request.request_type,
        )
        since_s = self._since_s.setdefault(request.number, now / 1000.0)
        self._num_tokens[query.request_id] = request.num_tokens
        self._placement.submit(query, now / 1000.0, since_s)

    def decide(self, now: float) -> list[Sent]:
        results = self._placement.run(self._table, now / 1000.0)
        return [self._sent(result, now) for result in results]

    def wake_ms(self, now: float) -> float:
        wake_s = self._placement.wake_s(now / 1000.0)
        return math.inf if wake_s is None else 1000.0 * wake_s

    def first_token(self, request: Request, now: float) -> None:
        self._placement.first_token(str(request.number), now / 1000.0)
        self._tell(str(request.number), FIRST_TOKEN, now)

    def release(self, request: Request, now: float, output_tokens: int) -> None:
        request_id = str(request.number)
        if output_tokens:
            self._since_s.pop(request.number, None)
            self._num_tokens.pop(request_id, None)
        self._placement.release(request_id, now / 1000.0, output_tokens)
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

    def _sent(self, result: Decision | Refused, now: float) -> Sent:
        assert isinstance(result, Decision), "there is a worker, and any time is in time"
        request_id, placed = result.request_id, result.placed
        num_tokens = result.num_tokens or self._num_tokens[request_id]
        uncached = max(0, num_tokens - placed.predicted_cached_tokens)
        if self._has_others:
            self._bookings[request_id] = Booking(
                request_id=request_id,
                worker=placed.worker,
                state=SENT,
                prefill_tokens=uncached,
                num_blocks=-(-num_tokens // self._table.block_size),
                service_ms=placed.predicted_service_ms,
            )
            self._tell(request_id, SENT, now)
        return Sent(int(request_id), placed.worker, uncached, result.num_tokens)

    def _tell(self, request_id: str, state: str, now: float) -> None:
        booking = self._bookings.get(request_id)
        if booking is None:
            return
        booking = self._bookings[request_id] = msgspec.structs.replace(booking, state=state)
        self._bus.tell(self._index, len(self._bookings), [booking], now)
