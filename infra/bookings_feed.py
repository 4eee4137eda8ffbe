"""Log -> what other routers have sent: one thread in each ingress process that is not alone.

Owns the reader and the counters of what was read. Decides nothing. No consumer group: every router
reads all. Starts at the end of the log: what was before it does the next listing of each router
tell.

1. A record that cannot be decoded is counted and skipped; the thread goes on.
2. A log that is another one than before needs nothing: listings mend what is known.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from controllers.errors import EventError
from controllers.record_codec import decode_bookings
from controllers.records import BookingBatch
from infra.event_bus_base import Bus, Reader, Record, ResetRequired, Topics

logger = logging.getLogger(__name__)

POLL_S = 0.1
RETRY_S = 1.0

OnBatch = Callable[[BookingBatch, float], object]
OnTurn = Callable[[float], object]


@dataclass
class BookingsCounters:
    """Since the start of the feed; without the router's own records."""

    num_records: int = 0
    num_bad: int = 0  # not decodable
    num_resets: int = 0
    lag_ms: float | None = None  # of the newest record, by the two clocks


class BookingsFeed:
    """Calls `on_batch` for every record of others, and `on_turn` several times a second.

    `pause_s`, a few ms, lies between two polls that brought something: a poll takes as much CPU
    time for one record as for many.
    """

    def __init__(
        self,
        *,
        bus: Bus,
        topics: Topics,
        own_id: str,
        pause_s: float,
        on_batch: OnBatch,
        on_turn: OnTurn,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counters = BookingsCounters()
        self._own_key = own_id.encode()
        self._pause_s = pause_s
        self._on_batch = on_batch
        self._on_turn = on_turn
        self._clock = clock
        self._reader: Reader = bus.reader(topics.bookings, backlog=0)
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bookings-feed", daemon=True)

    def start(self) -> None:
        """Both callbacks come on the feed's thread."""
        self._thread.start()

    def close(self) -> None:
        self._is_closing.set()
        if self._thread.is_alive():
            self._thread.join(2 * POLL_S + 1.0)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def is_connected(self) -> bool:
        return self._reader.is_connected()

    def _run(self) -> None:
        while not self._is_closing.is_set():
            try:
                has_read = self.turn()
            except Exception:
                logger.exception("bookings feed")
                self._is_closing.wait(RETRY_S)
            else:
                if has_read:
                    time.sleep(self._pause_s)  # too short for a wait that can be ended
        self._reader.close()

    def turn(self) -> bool:
        """One round: read, hand on; True if there were records."""
        records = self._poll()
        for record in records:
            if record.key != self._own_key:
                self._hand_on(record)
        self._on_turn(self._clock())
        return bool(records)

    def _poll(self) -> list[Record]:
        try:
            return self._reader.poll(POLL_S)
        except ResetRequired as error:
            self.counters.num_resets += 1
            logger.warning("bookings: %s", error)
            return []

    def _hand_on(self, record: Record) -> None:
        self.counters.num_records += 1
        try:
            batch = decode_bookings(record.value)
        except EventError as error:
            self.counters.num_bad += 1
            log = logger.warning if self.counters.num_bad <= 10 else logger.debug
            log("record %d/%d skipped: %s", record.partition, record.offset, error)
            return
        self.counters.lag_ms = max(0.0, time.time() * 1e3 - batch.ts_ms)
        self._on_batch(batch, self._clock())
