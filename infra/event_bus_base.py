"""The seam between the product and its log: what a producer and a reader promise.

Owns the record type, the topic names and the three protocols. Knows no Kafka. Implementations:
`infra.event_bus` (Kafka) and `infra.event_bus_memory` (ships, for tests and demonstrations); one
contract suite runs on both.

What may be relied on: the order of one key, offsets that grow without holes, and nothing else of
the log. A producer may lose records and says so; a reader may find that the log is another one than
before and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from controllers.errors import CachelaneError


@dataclass(frozen=True, slots=True)
class Topics:
    """Names of the topics under one prefix."""

    prefix: str

    @property
    def kv_events(self) -> str:
        return f"{self.prefix}.kv-events"

    @property
    def decisions(self) -> str:
        return f"{self.prefix}.decisions"

    @property
    def scaling(self) -> str:
        return f"{self.prefix}.scaling"

    @property
    def bookings(self) -> str:
        return f"{self.prefix}.bookings"

    @property
    def uses(self) -> str:
        return f"{self.prefix}.uses"

    def all(self) -> tuple[str, ...]:
        return (self.kv_events, self.decisions, self.scaling, self.bookings, self.uses)


class Record(NamedTuple):
    """One record as a reader returns it; `timestamp_ms` is the producer's clock."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes


class Delivery(NamedTuple):
    """An acknowledged record."""

    topic: str
    key: bytes
    partition: int
    offset: int


class Loss(NamedTuple):
    """A record that was accepted by `publish` and will not be acknowledged.

    It may still have reached the log (an acknowledgement can be lost): treat its place in the
    sequence as unknown, not as a hole.
    """

    topic: str
    key: bytes
    value: bytes
    reason: str


OnDelivery = Callable[[Delivery], None]
OnLoss = Callable[[Loss], None]


@dataclass(frozen=True, slots=True)
class BusHealth:
    """State of a producer.

    `num_connects` grows with every new connection after a failure that the client itself could
    not mend: what was sent before may be gone, so resend state when it changes. Records since the
    start are counted in `num_published`, `num_failed` (accepted, then lost) and `num_dropped` (not
    accepted).
    """

    is_connected: bool
    num_connects: int
    num_pending: int
    pending_bytes: int
    num_published: int
    num_failed: int
    num_dropped: int
    last_error: str


class ResetRequired(CachelaneError):
    """The topic is not the one read so far (created again, or cut back behind what was read).

    Drop everything derived from it. The reader has already gone back to its start position; go on
    with `poll`.
    """


class Producer(Protocol):
    """Publishes records; every method may be called from any thread.

    `on_delivery` and `on_loss` given at construction run on a thread of the bus, or within
    `publish`: they must not block nor call the producer, and the caller of `publish` must not hold
    a lock that they take. Setting a flag or appending to a queue is the intended use.
    """

    def publish(self, topic: str, key: bytes, value: bytes) -> bool:
        """Accept one record for sending; never blocks, never raises for the state of the bus.

        Returns False, and counts a drop, when the bound on pending records or bytes is reached or
        the producer is closed; `on_loss` is not called for it. Records of one key that were
        accepted reach the log in the order of the calls; a lost one leaves its place empty.
        Cost: a few microseconds and one lock. Raises BusError only for a record larger than the
        configured maximum or a topic that is none of the bus's.
        """
        ...

    def health(self) -> BusHealth: ...

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was accepted before is acknowledged or lost; False on timeout."""
        ...

    def close(self, timeout_s: float = 2.0) -> None:
        """Flush within `timeout_s`, report the rest as lost, free the connection. Idempotent."""
        ...


class Reader(Protocol):
    """Reads one topic from all its partitions, without a group; one thread owns it."""

    def poll(self, timeout_s: float) -> list[Record]:
        """Return the next records, at most a few thousand; an empty list when none came in time.

        Offsets of one partition come in order and without duplicates, also across reconnects. While
        the bus is away the call waits out its time, or a little more while it tries to connect, and
        returns an empty list: it does not raise. Raises ResetRequired, see there.
        """
        ...

    def is_connected(self) -> bool:
        """True if the bus answered lately."""
        ...

    def is_caught_up(self) -> bool:
        """True if `poll` has returned all that the bus told of in its last answers."""
        ...

    def lag(self) -> int | None:
        """Records that `poll` has not returned yet; None until every partition answered."""
        ...

    def last_error(self) -> str:
        """What kept the last attempt from connecting or reading; empty once it works again."""
        ...

    def close(self) -> None:
        """Free the connection; called by the owning thread. Idempotent."""
        ...


class Bus(Protocol):
    """Makes producers and readers of one log."""

    def producer(
        self,
        on_delivery: OnDelivery | None = None,
        on_loss: OnLoss | None = None,
        linger_s: float = 0.0,
    ) -> Producer:
        """Return at once; the connection is made in the background, again and again if need be.

        A record may wait `linger_s` for others: many small records cost far less sent together.
        """
        ...

    def reader(self, topic: str, backlog: int | None = None) -> Reader:
        """Return at once; the first `poll` connects.

        Starts at the oldest record kept, or `backlog` records before the end of each partition.
        """
        ...
