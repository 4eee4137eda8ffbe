"""Placement for several threads: one lock around reservations, loads and suspected workers.

The event loop submits and releases, the table feed's thread brings loads, Serve's router thread the
workers, the bookings feed's what other routers sent; they are told what this one does. Every
decision is `controllers.placement`'s, when it is asked `passes`'.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controllers.booking_sums import SENT
from controllers.cost_model import CostModel
from controllers.events import Load
from controllers.placement import (
    Losses,
    Placement,
    Query,
    Refused,
    Sent,
    TableView,
)
from controllers.records import Booking, BookingBatch
from controllers.suspects import Suspects
from infra.bookings_feed import BookingsCounters
from infra.event_bus_base import Bus, Topics
from infra.settings import Settings
from serve_app.passes import Passes
from serve_app.sharing import Sharing

# Serve needs about so long to find out that a replica is gone and to tell its routers.
SUSPECTED_S = 5.0


class Placer:
    """`clock` in seconds. `exclude_of`: workers that may not take a request, asked at every pass;
    what it raises is what the request hears. `router`: under which the others know this one.
    `losses`: see `Placement`; asked under the placer's lock."""

    def __init__(
        self,
        settings: Settings,
        table: TableView,
        bus: Bus,
        *,
        router: str,
        seed: int | None,
        clock: Callable[[], float],
        exclude_of: Callable[[Query], set[str]],
        losses: Losses | None = None,
    ) -> None:
        self.suspects = Suspects(SUSPECTED_S)
        self._table = table
        self._clock = clock
        self._exclude_of = exclude_of
        self._lock = threading.Lock()
        self._workers: frozenset[str] = frozenset()
        self._placement = Placement(
            settings.routing,
            CostModel(settings.executor.max_batched_tokens),
            random.Random(seed),
            max_running=settings.executor.max_batch_size,
            router_id=router,
            losses=losses,
        )
        self._sharing = Sharing(
            bus=bus,
            topics=Topics(settings.kafka.topic_prefix),
            router=router,
            on_batch=self._on_bookings,
            on_turn=self._on_turn,
            clock=clock,
        )
        self._passes = Passes(self._run, self._wake_in_s, self.release)

    @property
    def num_reserved(self) -> int:
        return self._placement.num_reserved

    @property
    def num_held(self) -> int:
        """Requests that no worker should start yet."""
        return self._placement.num_waiting

    @property
    def num_expired(self) -> int:
        """Reservations that nobody released."""
        return self._placement.num_expired

    def configure(self, settings: Settings) -> None:
        with self._lock:
            self._placement.configure(settings.routing)
        self._sharing.configure(settings)
        self._passes.soon()

    def check_health(self) -> None:
        """Raises ExecutorDead."""
        self._sharing.check_health()

    def bookings(self) -> BookingsCounters | None:
        """What was heard of other routers; None while this one is alone."""
        return self._sharing.counters()

    def set_workers(self, num_blocks: Mapping[str, int]) -> None:
        """GPU blocks by worker."""
        with self._lock:
            self._workers = frozenset(num_blocks)
            self._placement.set_workers(num_blocks)
        self._passes.soon()

    async def send(self, query: Query, since_s: float) -> Sent:
        """Wait until it should go, and reserve; suspected workers last. `since_s`: when it came.
        Raises NotReady or Overloaded, with nothing reserved. An id that is there already is moved.
        """
        request_id = query.request_id
        with self._lock:
            self._placement.submit(query, self._clock(), since_s)
        try:
            sent = await self._passes.turn(request_id)
        except BaseException:
            self.release(request_id)
            raise
        self._tell(query, sent)
        return sent

    def explain(self, query: Query, now: float) -> dict[str, Any]:
        """The choice and every worker's figures; nothing is reserved."""
        with self._lock:
            return self._placement.explain(query, self._table, now)

    def first_token(self, request_id: str, worker: str) -> None:
        with self._lock:
            self.suspects.clear(worker)
            self._placement.first_token(request_id, self._clock())
        self._sharing.first_token(request_id)
        self._passes.soon()

    def failed(self, request_id: str, worker: str) -> None:
        """The worker did not do it, and may not do others either."""
        with self._lock:
            self.suspects.fail(worker, self._clock())
        self.release(request_id)

    def release(self, request_id: str, num_output_tokens: int = 0) -> None:
        """It has left its worker, or waits no longer. Unknown ids change nothing."""
        with self._lock:
            self._placement.release(request_id, self._clock(), num_output_tokens)
        self._sharing.done(request_id)
        self._passes.leave(request_id)
        self._passes.soon()

    def take_back(self, request_id: str) -> None:
        """Its worker has handed it back; it is to be sent again."""
        with self._lock:
            self._placement.take_back(request_id, self._clock())
        self.release(request_id)

    def withdraw(self, request_id: str) -> None:
        """It gives way. If it has been sent already, whoever runs it releases it."""
        if self._passes.leave(request_id):
            self.release(request_id)

    def on_load(self, worker: str, load: Load, now: float) -> None:
        """Nobody goes sooner for it; the next pass knows."""
        with self._lock:
            if load.is_stalled:
                self.suspects.fail(worker, now)
            self._placement.on_load(worker, load, now)

    def close(self) -> None:
        self._passes.close()
        self._sharing.close()

    def _tell(self, query: Query, sent: Sent) -> None:
        """The other routers."""
        placed = sent.placed
        num_tokens = query.num_tokens if sent.num_tokens is None else sent.num_tokens
        self._sharing.sent(
            Booking(
                request_id=query.request_id,
                worker=placed.worker,
                state=SENT,
                prefill_tokens=max(0, num_tokens - placed.predicted_cached_tokens),
                num_blocks=-(-num_tokens // self._table.block_size),
                rank=query.rank,
                service_ms=round(placed.predicted_service_ms, 1),
            )
        )

    def _on_bookings(self, batch: BookingBatch, now: float) -> None:
        with self._lock:
            self._placement.on_bookings(batch, now)

    def _on_turn(self, now: float) -> None:
        with self._lock:
            if math.isinf(now):
                self._placement.forget_others(self._clock())
            else:
                self._placement.sweep(now)

    def _run(self) -> Sequence[Sent | Refused]:
        now = self._clock()
        with self._lock:
            return self._placement.run(self._table, now, lambda query: self._excluded(query, now))

    def _excluded(self, query: Query, now: float) -> set[str]:
        excluded = self._exclude_of(query)
        return excluded | self.suspects.among(self._workers - excluded, now)

    def _wake_in_s(self) -> float | None:
        now = self._clock()
        with self._lock:
            wake_s = self._placement.wake_s(now)
        return None if wake_s is None else max(0.0, wake_s - now)
