"""What ingresses tell each other of the prompts they serve: a producer and a thread that reads.

Owns the topic's records on the wire and when they happened by this process's clock. Does not know
what is learned from them. Every ingress reads all records, without a group.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import msgspec

from controllers.errors import BusError, EventError
from controllers.events import SCHEMA
from controllers.record_codec import encode
from controllers.records import PrefixUse
from infra.event_bus_base import Bus, Reader, ResetRequired

logger = logging.getLogger(__name__)

POLL_S = 0.1
RETRY_S = 1.0
# The client's work is for each batch, not for each record, so they wait for others. What is heard
# within a few tenths of a second is early enough (`bench.retention_sharing`).
LINGER_S = 0.1
PAUSE_S = 0.1  # between two rounds
# One key, so one partition: all ingresses hear everything in one order, also of the past.
KEY = b"all"
# What a new ingress reads of the past, at most: records, and their age.
BACKLOG = 20_000
MAX_AGE_S = 600.0
# Nodes' clocks may differ by so much: what seems younger counts as of now.
CLOCK_SKEW_S = 2.0
CLOSE_TIMEOUT_S = 1.0

OnUse = Callable[[PrefixUse, float], None]
_decoder = msgspec.json.Decoder(PrefixUse)


class UseExchange:
    """`on_use(record, at)` is called on this exchange's thread."""

    def __init__(self, bus: Bus, topic: str, on_use: OnUse, clock: Callable[[], float]) -> None:
        self.num_bad = 0  # records that could not be used
        self.num_unsent = 0
        self._topic = topic
        self._on_use = on_use
        self._clock = clock
        self._producer = bus.producer(linger_s=LINGER_S)
        self._reader: Reader = bus.reader(topic, backlog=BACKLOG)
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="use-exchange", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Returns at once; the thread ends by itself."""
        self._is_closing.set()

    def publish(self, record: PrefixUse) -> None:
        """Never blocks. What cannot be sent the others do not learn from."""
        try:
            is_sent = self._producer.publish(self._topic, KEY, encode(record))
        except BusError as error:
            logger.warning("the others do not hear of %s: %s", record.request_id, error)
            is_sent = False
        self.num_unsent += not is_sent

    def turn(self) -> None:
        """One round of the thread."""
        try:
            records = self._reader.poll(POLL_S)
        except ResetRequired as error:
            logger.warning("%s", error)
            return
        wall_s, now = time.time(), self._clock()
        for record in records:
            age_s = wall_s - record.timestamp_ms / 1e3
            if age_s <= MAX_AGE_S:
                self._apply(record.value, now - age_s if age_s > CLOCK_SKEW_S else now)

    def _apply(self, value: bytes, at: float) -> None:
        try:
            use = _decoder.decode(value)
            if use.schema != SCHEMA:
                raise EventError(f"schema is {use.schema}, this program reads {SCHEMA}")
            self._on_use(use, at)
        except (msgspec.DecodeError, UnicodeDecodeError, EventError) as error:
            self.num_bad += 1
            log = logger.warning if self.num_bad <= 10 else logger.debug
            log("use record skipped: %s", error)

    def _run(self) -> None:
        while not self._is_closing.is_set():
            try:
                self.turn()
                self._is_closing.wait(PAUSE_S)
            except Exception:
                logger.exception("use exchange")
                self._is_closing.wait(RETRY_S)
        self._reader.close()
        self._producer.close(CLOSE_TIMEOUT_S)
