"""What this router has sent, told to the other routers through the log.

Owns its records' numbers and the open bookings as others know them. Knows neither who reads it nor
how a worker is chosen.

1. A change goes out at once if none did lately; otherwise with others that come within the linger.
2. Every LIST_INTERVAL_S all open bookings are listed, none included: the heartbeat, and what heals
   a reader that starts late or lost a record.
3. The state of the log never reaches a request: what cannot be told is listed later.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from controllers.booking_sums import DONE, FIRST_TOKEN, SENT
from controllers.errors import BusError
from controllers.events import SCHEMA
from controllers.record_codec import encode
from controllers.records import Booking, BookingBatch
from infra.event_bus_base import Bus, Topics

logger = logging.getLogger(__name__)

LIST_INTERVAL_S = 1.0
# Readers take in one record at a time, while requests wait to be placed.
MAX_PER_RECORD = 256
BYTES_PER_BOOKING = 512  # a long id included
COMPLAINT_INTERVAL_S = 60.0


class BookingLog:
    """Any thread may use it. Bookings that nobody ends are left out after `max_age_s`."""

    def __init__(
        self,
        *,
        bus: Bus,
        topics: Topics,
        router: str,
        linger_s: float,
        max_age_s: float,
        max_record_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_age_s = max_age_s
        self._router = router
        self._topic = topics.bookings
        self._key = router.encode()
        self._linger_s = linger_s
        self._max_per_record = max(1, min(MAX_PER_RECORD, max_record_bytes // BYTES_PER_BOOKING))
        self._clock = clock
        self._producer = bus.producer()
        self._lock = threading.Lock()
        self._open: dict[str, tuple[Booking, float]] = {}  # with the time of sending, oldest first
        # By id and worker the newest state, in order: of one that is sent again elsewhere readers
        # must hear that it ran for no longer where it was.
        self._changed: dict[tuple[str, str], Booking] = {}
        self._seq = 0
        self._is_resting = False  # the linger runs: changes wait for its end
        self._has_news = threading.Event()
        self._is_closing = threading.Event()
        self._list_at = float("-inf")
        self._complain_at = float("-inf")
        self._thread = threading.Thread(target=self._run, name="booking-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def close(self, timeout_s: float = 1.0) -> None:
        """Tell the others that nothing is under way here any more. Idempotent."""
        if self._is_closing.is_set():
            return
        self._is_closing.set()
        self._has_news.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        with self._lock:
            self._open.clear()
            self._publish_listing()
        self._producer.close(timeout_s)

    def sent(self, booking: Booking) -> None:
        """In its state `sent`. A request that is sent again is another booking of the same id."""
        now = self._clock()
        with self._lock:
            self._open.pop(booking.request_id, None)
            self._open[booking.request_id] = (booking, now)
            self._tell(booking)

    def first_token(self, request_id: str) -> None:
        """Unknown ids and second calls change nothing."""
        with self._lock:
            found = self._open.get(request_id)
            if found is not None and found[0].state == SENT:
                booking = self._ended(*found, FIRST_TOKEN)
                self._open[request_id] = (booking, found[1])
                self._tell(booking)

    def done(self, request_id: str) -> None:
        """It has left its worker, however it ended. Unknown ids change nothing."""
        with self._lock:
            found = self._open.pop(request_id, None)
            if found is not None:
                self._tell(self._ended(*found, DONE))

    def turn(self) -> bool:
        """Publish what is due; True if there was a change to tell."""
        now = self._clock()
        with self._lock:
            has_changes = bool(self._changed)
            self._publish_changes()
            if now >= self._list_at:
                self._list_at = now + LIST_INTERVAL_S
                self._leave_out_old(now)
                self._publish_listing()
            self._is_resting = has_changes
            if not has_changes:
                self._has_news.clear()
        return has_changes

    def _run(self) -> None:
        while not self._is_closing.is_set():
            if not self.turn():
                self._has_news.wait(max(0.0, self._list_at - self._clock()))
            self._is_closing.wait(self._linger_s)

    def _ended(self, booking: Booking, sent_at: float, state: str) -> Booking:
        """Its prefill ended now, unless it had before."""
        service_ms = booking.service_ms
        if booking.state == SENT:
            service_ms = min(service_ms, round((self._clock() - sent_at) * 1e3, 1))
        return msgspec.structs.replace(booking, state=state, service_ms=service_ms)

    def _tell(self, booking: Booking) -> None:
        if self._is_closing.is_set():
            return
        key = booking.request_id, booking.worker
        self._changed.pop(key, None)
        self._changed[key] = booking
        if not self._is_resting:
            self._publish_changes()
            self._is_resting = True
            self._has_news.set()

    def _publish_changes(self) -> None:
        for part in self._parts(self._changed.values()):
            self._publish(part, 0, 0)
        self._changed.clear()

    def _publish_listing(self) -> None:
        parts = list(self._parts(booking for booking, _ in self._open.values())) or [[]]
        for number, part in enumerate(parts):
            self._publish(part, number, len(parts))

    def _parts(self, bookings: Iterable[Booking]) -> Iterator[list[Booking]]:
        rest = list(bookings)
        for start in range(0, len(rest), self._max_per_record):
            yield rest[start : start + self._max_per_record]

    def _publish(self, bookings: Sequence[Booking], part: int, num_parts: int) -> None:
        record = BookingBatch(
            schema=SCHEMA,
            ts_ms=time.time_ns() // 1_000_000,
            router=self._router,
            seq=self._seq,
            num_open=len(self._open),
            bookings=list(bookings),
            part=part,
            num_parts=num_parts,
        )
        self._seq += 1
        try:
            is_accepted = self._producer.publish(self._topic, self._key, encode(record))
        except BusError as error:
            self._complain(str(error))
        else:
            if not is_accepted:
                self._complain("too many records wait for the log")

    def _leave_out_old(self, now: float) -> None:
        for request_id, (_, sent_at) in list(self._open.items()):
            if now - sent_at <= self.max_age_s:
                break
            del self._open[request_id]

    def _complain(self, why: str) -> None:
        now = self._clock()
        if now >= self._complain_at:
            self._complain_at = now + COMPLAINT_INTERVAL_S
            logger.warning("other routers are not told of bookings: %s", why)
