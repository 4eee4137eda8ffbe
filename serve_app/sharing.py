"""Telling other routers what this one has sent, and hearing the same of them; nothing while alone.

Owns the booking log and the feed, and when they run. Decides nothing, and keeps nothing of what it
hears: `controllers.other_routers` does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from controllers.errors import ExecutorDead
from controllers.records import Booking
from infra.bookings_feed import BookingsCounters, BookingsFeed, OnBatch, OnTurn
from infra.event_bus_base import Bus, Topics
from infra.settings import Settings
from serve_app.booking_log import BookingLog

CLOSE_S = 0.5


class Sharing:
    """`on_batch` and `on_turn` come on the feed's thread, see there. A last `on_turn` with an
    infinite time says that nobody is heard of any more."""

    def __init__(
        self,
        *,
        bus: Bus,
        topics: Topics,
        router: str,
        on_batch: OnBatch,
        on_turn: OnTurn,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus = bus
        self._topics = topics
        self._router = router
        self._on_batch = on_batch
        self._on_turn = on_turn
        self._clock = clock
        self._log: BookingLog | None = None
        self._feed: BookingsFeed | None = None

    def configure(self, settings: Settings) -> None:
        """Starts with the second ingress, and ends when there is one left."""
        if settings.http.num_ingress == 1:
            self.close()
        elif self._log is None:
            self._open(settings)
        else:
            self._log.max_age_s = settings.routing.reservation_ttl_s

    def close(self) -> None:
        log, feed = self._log, self._feed
        self._log = self._feed = None
        if log is not None:
            log.close(CLOSE_S)
        if feed is not None:
            feed.close()
            self._on_turn(math.inf)

    def sent(self, booking: Booking) -> None:
        log = self._log
        if log is not None:
            log.sent(booking)

    def first_token(self, request_id: str) -> None:
        log = self._log
        if log is not None:
            log.first_token(request_id)

    def done(self, request_id: str) -> None:
        log = self._log
        if log is not None:
            log.done(request_id)

    def counters(self) -> BookingsCounters | None:
        """None while alone."""
        return None if self._feed is None else self._feed.counters

    def check_health(self) -> None:
        """Raises ExecutorDead if a thread has ended."""
        for part in (self._log, self._feed):
            if part is not None and not part.is_alive():
                raise ExecutorDead("the exchange of bookings has ended")

    def _open(self, settings: Settings) -> None:
        log = BookingLog(
            bus=self._bus,
            topics=self._topics,
            router=self._router,
            linger_s=settings.http.bookings_linger_s,
            max_age_s=settings.routing.reservation_ttl_s,
            max_record_bytes=settings.kafka.max_record_bytes,
            clock=self._clock,
        )
        feed = BookingsFeed(
            bus=self._bus,
            topics=self._topics,
            own_id=self._router,
            pause_s=settings.http.bookings_linger_s / 2,
            on_batch=self._on_batch,
            on_turn=self._on_turn,
            clock=self._clock,
        )
        feed.start()
        log.start()
        self._log, self._feed = log, feed
