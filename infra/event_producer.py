"""A producer that never makes its caller wait: a bounded queue and a thread that sends from it.

Owns the bounds, the order, the accounting of every accepted record, and when to connect anew.
Knows no client library: it talks to a `Sender`, which `infra.kafka_sender` supplies.

Laws
1. Every accepted record ends in exactly one of: delivered, lost.
2. Queued and unacknowledged records together stay within `max_pending` and `max_pending_bytes`.
3. Only this thread connects, sends and closes; `publish` takes one lock and touches no socket.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from controllers.errors import BusError
from infra.event_bus_base import BusHealth, Delivery, Loss, OnDelivery, OnLoss

log = logging.getLogger(__name__)

LOOK_S = 0.25  # how often an idle sender looks after its connection

Done = Callable[[str, int, int], None]  # error ("" if delivered), partition, offset


class Sender(Protocol):
    """One connection to the bus."""

    def send(self, topic: str, key: bytes, value: bytes, done: Done) -> None:
        """Hand over one record; `done` is called once, on any thread.

        Raises BusError if this connection cannot be used any more.
        """
        ...

    def is_connected(self) -> bool: ...

    def is_usable(self) -> bool:
        """False once a failed record showed that later ones will fail too."""
        ...

    def close(self) -> None:
        """Give up what is not acknowledged yet; blocks for a second at most."""
        ...


@dataclass(frozen=True, slots=True)
class ProducerLimits:
    """`delivery_timeout_s`: a record that waited longer to be sent counts as lost.

    `max_in_flight`: records handed to the client at a time. All of them are lost when it has to be
    replaced, while what still waits here is not.
    """

    max_pending: int = 10_000
    max_in_flight: int = 1_000
    max_pending_bytes: int = 64_000_000
    max_record_bytes: int = 1_000_000
    delivery_timeout_s: float = 30.0
    min_backoff_s: float = 0.25
    max_backoff_s: float = 2.0


@dataclass(slots=True)
class _Entry:
    number: int
    topic: str
    key: bytes
    value: bytes
    deadline_s: float

    @property
    def size(self) -> int:
        return len(self.key) + len(self.value)


class EventProducer:
    """See `infra.event_bus_base.Producer`."""

    def __init__(
        self,
        connect: Callable[[], Sender],
        topics: Iterable[str],
        limits: ProducerLimits,
        on_delivery: OnDelivery | None = None,
        on_loss: OnLoss | None = None,
        linger_s: float = 0.0,
    ) -> None:
        self._connect = connect
        self._topics = frozenset(topics)
        self._limits = limits
        self._on_delivery = on_delivery
        self._on_loss = on_loss
        self._linger_s = linger_s
        # Two conditions of one lock: an acknowledgement must not wake the thread that sends.
        self._lock = threading.Lock()
        self._settled = threading.Condition(self._lock)
        self._sendable = threading.Condition(self._lock)
        self._queue: deque[_Entry] = deque()
        self._in_flight: dict[int, _Entry] = {}
        self._pending_bytes = 0
        self._num_accepted = 0
        self._num_published = 0
        self._num_failed = 0
        self._num_dropped = 0
        self._num_connects = 0
        self._last_error = ""
        self._sender: Sender | None = None
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="bus-producer", daemon=True)
        self._thread.start()

    def publish(self, topic: str, key: bytes, value: bytes) -> bool:
        self._check(topic, key, value)
        size = len(key) + len(value)
        with self._lock:
            if self._is_closing or self._is_full(size):
                self._num_dropped += 1
                return False
            self._num_accepted += 1
            deadline_s = time.monotonic() + self._limits.delivery_timeout_s
            self._queue.append(_Entry(self._num_accepted, topic, key, value, deadline_s))
            self._pending_bytes += size
            if len(self._queue) == 1:
                self._sendable.notify_all()
        return True

    def health(self) -> BusHealth:
        sender = self._sender
        is_connected = sender is not None and sender.is_connected()
        with self._lock:
            return BusHealth(
                is_connected=is_connected,
                num_connects=self._num_connects,
                num_pending=len(self._queue) + len(self._in_flight),
                pending_bytes=self._pending_bytes,
                num_published=self._num_published,
                num_failed=self._num_failed,
                num_dropped=self._num_dropped,
                last_error=self._last_error,
            )

    def flush(self, timeout_s: float) -> bool:
        with self._settled:
            last = self._num_accepted
            return self._settled.wait_for(lambda: self._is_settled(last), timeout_s)

    def close(self, timeout_s: float = 2.0) -> None:
        self.flush(timeout_s)
        with self._sendable:
            self._is_closing = True
            self._sendable.notify_all()
        # A connection attempt in progress may outlast this bound; its thread then ends by itself.
        self._thread.join(timeout_s + 1.0)
        self._lose_all("the producer was closed")

    def _check(self, topic: str, key: bytes, value: bytes) -> None:
        if topic not in self._topics:
            raise BusError(f"unknown topic {topic!r}; valid: {', '.join(sorted(self._topics))}")
        if len(key) + len(value) > self._limits.max_record_bytes:
            raise BusError(
                f"a record of {len(key) + len(value)} bytes for {topic!r} exceeds "
                f"max_record_bytes={self._limits.max_record_bytes}"
            )

    def _is_full(self, size: int) -> bool:
        num_pending = len(self._queue) + len(self._in_flight)
        return (
            num_pending >= self._limits.max_pending
            or self._pending_bytes + size > self._limits.max_pending_bytes
        )

    def _is_settled(self, last: int) -> bool:
        """Numbers grow along the queue and, because only one thread sends, along `_in_flight`."""
        oldest_in_flight = next(iter(self._in_flight), last + 1)
        oldest_queued = self._queue[0].number if self._queue else last + 1
        return min(oldest_in_flight, oldest_queued) > last

    def _run(self) -> None:
        backoff_s = self._limits.min_backoff_s
        while not self._is_closing:
            if self._is_ready() and self._send_queued():
                backoff_s = self._limits.min_backoff_s
                continue
            self._expire()
            self._wait_to_retry(backoff_s)
            backoff_s = min(backoff_s * 2, self._limits.max_backoff_s)
        self._disconnect("the producer was closed")

    def _is_ready(self) -> bool:
        sender = self._sender
        if sender is not None and (not sender.is_usable() or self._is_stuck()):
            self._disconnect("the connection had to be replaced")
        return self._sender is not None or self._try_connect()

    def _is_stuck(self) -> bool:
        """The client settles a record within its delivery timeout; much more is a defect."""
        with self._lock:
            oldest = next(iter(self._in_flight.values()), None)
        grace_s = 2 * self._limits.delivery_timeout_s
        return oldest is not None and time.monotonic() > oldest.deadline_s + grace_s

    def _try_connect(self) -> bool:
        try:
            sender = self._connect()
        except BusError as error:
            self._note_error(str(error))
            return False
        with self._lock:
            self._sender = sender
            self._num_connects += 1
        return True

    def _wait_to_retry(self, backoff_s: float) -> None:
        with self._sendable:
            self._sendable.wait_for(lambda: self._is_closing, backoff_s)

    def _send_queued(self) -> bool:
        """Send one record, or wait for one to send; False if the connection had to be given up."""
        sender = self._sender
        entry = None if sender is None else self._take(sender)
        if sender is None or entry is None:
            self._expire()
            return True
        try:
            sender.send(entry.topic, entry.key, entry.value, self._done(entry.number))
        except BusError as error:
            self._note_error(str(error))
            self._put_back(entry)
            self._disconnect(str(error))
            return False
        return True

    def _take(self, sender: Sender) -> _Entry | None:
        def can_send() -> bool:
            return bool(self._queue) and len(self._in_flight) < self._limits.max_in_flight

        def must_stop() -> bool:
            return self._is_closing or not sender.is_usable()

        with self._sendable:
            if not can_send():
                self._sendable.wait_for(lambda: can_send() or must_stop(), LOOK_S)
                if self._linger_s and can_send():
                    self._sendable.wait_for(must_stop, self._linger_s)
            if not can_send() or must_stop():
                return None
            entry = self._queue.popleft()
            self._in_flight[entry.number] = entry
            return entry

    def _put_back(self, entry: _Entry) -> None:
        with self._lock:
            if self._in_flight.pop(entry.number, None) is not None:
                self._queue.appendleft(entry)

    def _done(self, number: int) -> Done:
        def done(error: str, partition: int, offset: int) -> None:
            entry = self._settle(number, error)
            if entry is None:
                return
            if error:
                self._report_loss(entry, error)
            elif self._on_delivery is not None:
                self._on_delivery(Delivery(entry.topic, entry.key, partition, offset))

        return done

    def _settle(self, number: int, error: str) -> _Entry | None:
        """Take a record off the books; None if it was already settled by a lost connection."""
        with self._lock:
            entry = self._in_flight.pop(number, None)
            if entry is None:
                return None
            self._pending_bytes -= entry.size
            if error or len(self._in_flight) == self._limits.max_in_flight - 1:
                self._sendable.notify_all()
            if error:
                self._num_failed += 1
                self._last_error = error
            else:
                self._num_published += 1
            self._settled.notify_all()
            return entry

    def _disconnect(self, reason: str) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()
        for number in list(self._in_flight):
            self._done(number)(reason, -1, -1)

    def _expire(self) -> None:
        """Lose queued records that have waited too long to be sent."""
        now = time.monotonic()
        while self._queue and self._queue[0].deadline_s < now:
            self._lose_head("not sent within the delivery timeout")

    def _lose_all(self, reason: str) -> None:
        while self._queue:
            self._lose_head(reason)

    def _lose_head(self, reason: str) -> None:
        with self._lock:
            if not self._queue:
                return
            entry = self._queue.popleft()
            self._pending_bytes -= entry.size
            self._num_failed += 1
            self._settled.notify_all()
        self._report_loss(entry, reason)

    def _report_loss(self, entry: _Entry, reason: str) -> None:
        if self._on_loss is not None:
            self._on_loss(Loss(entry.topic, entry.key, entry.value, reason))

    def _note_error(self, message: str) -> None:
        if message != self._last_error:
            log.warning("message bus: %s", message)
        with self._lock:
            self._last_error = message
