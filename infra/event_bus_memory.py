"""The log in memory: the same promises as on Kafka, and faults on demand.

For tests and for runs without a broker; it ends with the process. All producers and readers of one
`MemoryBus` may be on different threads. Callbacks run within `publish`, `bring_up` or `close`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field

import xxhash

from controllers.errors import BusError
from infra.event_bus_base import (
    BusHealth,
    Delivery,
    Loss,
    OnDelivery,
    OnLoss,
    Record,
    ResetRequired,
    Topics,
)

MAX_POLL_RECORDS = 2_000


@dataclass(slots=True)
class _Topic:
    """`generation` grows when the topic is created again."""

    logs: list[list[Record]]
    generation: int = 0


@dataclass(slots=True)
class _Counts:
    published: int = 0
    failed: int = 0
    dropped: int = 0
    connects: int = 0


@dataclass(slots=True)
class _State:
    """What a bus shares with its producers and readers; guarded by `changed`."""

    topics: dict[str, _Topic]
    changed: threading.Condition = field(default_factory=threading.Condition)
    is_up: bool = True
    num_to_lose: int = 0


class MemoryBus:
    """See `infra.event_bus_base.Bus`; starts up, with empty topics."""

    def __init__(
        self,
        topics: Topics | None = None,
        *,
        num_partitions: int = 12,
        max_record_bytes: int = 1_000_000,
        max_pending: int = 10_000,
        max_pending_bytes: int = 64_000_000,
    ) -> None:
        self.topics = topics or Topics("cachelane")
        self._num_partitions = num_partitions
        self._max_record_bytes = max_record_bytes
        self._max_pending = max_pending
        self._max_pending_bytes = max_pending_bytes
        self._state = _State({name: _Topic(self._empty()) for name in self.topics.all()})
        self._producers: list[MemoryProducer] = []

    def ensure_topics(self) -> None:
        """Nothing to do: they exist."""

    def producer(
        self,
        on_delivery: OnDelivery | None = None,
        on_loss: OnLoss | None = None,
        linger_s: float = 0.0,
    ) -> MemoryProducer:
        producer = MemoryProducer(self, self._state, on_delivery, on_loss)
        self._producers.append(producer)
        if self._state.is_up:
            producer.resume()
        return producer

    def reader(self, topic: str, backlog: int | None = None) -> MemoryReader:
        self.check(topic, b"", b"")
        return MemoryReader(self._state, topic, backlog)

    def take_down(self) -> None:
        """From now on records wait in their producers, and readers get nothing."""
        with self._state.changed:
            self._state.is_up = False
            self._state.changed.notify_all()

    def bring_up(self) -> None:
        """Come back with everything kept; what waited is delivered."""
        with self._state.changed:
            self._state.is_up = True
            self._state.changed.notify_all()
        for producer in self._producers:
            producer.resume()

    def lose_pending(self, reason: str = "not sent within the delivery timeout") -> None:
        """What the delivery timeout does to records that wait while the bus is down."""
        for producer in self._producers:
            producer.lose_pending(reason)

    def lose_next(self, count: int) -> None:
        """Accept the next `count` records and lose them: `on_loss` is told, the log is not."""
        self._state.num_to_lose = count

    def recreate_topic(self, topic: str) -> None:
        """Replace a topic by an empty one of the same name."""
        self.check(topic, b"", b"")
        with self._state.changed:
            old = self._state.topics[topic]
            self._state.topics[topic] = _Topic(self._empty(), old.generation + 1)
            self._state.changed.notify_all()

    def partition_of(self, key: bytes) -> int:
        return xxhash.xxh64_intdigest(key) % self._num_partitions

    def check(self, topic: str, key: bytes, value: bytes) -> None:
        """Raise BusError as every implementation does, see `Producer.publish`."""
        if topic not in self._state.topics:
            raise BusError(f"unknown topic {topic!r}; valid: {', '.join(self.topics.all())}")
        size = len(key) + len(value)
        if size > self._max_record_bytes:
            raise BusError(
                f"a record of {size} bytes for {topic!r} exceeds "
                f"max_record_bytes={self._max_record_bytes}"
            )

    def has_room(self, num_pending: int, num_bytes: int) -> bool:
        return num_pending <= self._max_pending and num_bytes <= self._max_pending_bytes

    def _empty(self) -> list[list[Record]]:
        return [[] for _ in range(self._num_partitions)]


class MemoryProducer:
    """See `infra.event_bus_base.Producer`."""

    def __init__(
        self,
        bus: MemoryBus,
        state: _State,
        on_delivery: OnDelivery | None,
        on_loss: OnLoss | None,
    ) -> None:
        self._bus = bus
        self._state = state
        self._on_delivery = on_delivery
        self._on_loss = on_loss
        self._pending: deque[tuple[str, bytes, bytes]] = deque()
        self._pending_bytes = 0
        self._counts = _Counts()
        self._is_closed = False

    def publish(self, topic: str, key: bytes, value: bytes) -> bool:
        self._bus.check(topic, key, value)
        size = len(key) + len(value)
        with self._state.changed:
            has_room = self._bus.has_room(len(self._pending) + 1, self._pending_bytes + size)
            if self._is_closed or not has_room:
                self._counts.dropped += 1
                return False
            self._pending.append((topic, key, value))
            self._pending_bytes += size
        if self._state.is_up:
            self._deliver()
        return True

    def resume(self) -> None:
        """The bus came up."""
        self._counts.connects += 1
        self._deliver()

    def lose_pending(self, reason: str) -> None:
        while (item := self._pop()) is not None:
            self._lose(item, reason)

    def health(self) -> BusHealth:
        with self._state.changed:
            return BusHealth(
                is_connected=self._state.is_up and not self._is_closed,
                num_connects=self._counts.connects,
                num_pending=len(self._pending),
                pending_bytes=self._pending_bytes,
                num_published=self._counts.published,
                num_failed=self._counts.failed,
                num_dropped=self._counts.dropped,
                last_error="" if self._state.is_up else "the bus is down",
            )

    def flush(self, timeout_s: float) -> bool:
        with self._state.changed:
            return self._state.changed.wait_for(lambda: not self._pending, timeout_s)

    def close(self, timeout_s: float = 2.0) -> None:
        self.flush(timeout_s)
        self._is_closed = True
        self.lose_pending("the producer was closed")

    def _deliver(self) -> None:
        while True:
            # Taking and appending are one step, or two threads could swap records of one key.
            with self._state.changed:
                item = self._pop()
                if item is None:
                    return
                is_lost = self._state.num_to_lose > 0
                self._state.num_to_lose -= is_lost
                delivery = None if is_lost else self._append(*item)
            if delivery is None:
                self._lose(item, "lost on demand")
            elif self._on_delivery is not None:
                self._on_delivery(delivery)

    def _append(self, topic: str, key: bytes, value: bytes) -> Delivery:
        partition = self._bus.partition_of(key)
        log = self._state.topics[topic].logs[partition]
        log.append(Record(partition, len(log), time.time_ns() // 1_000_000, key, value))
        self._counts.published += 1
        self._state.changed.notify_all()
        return Delivery(topic, key, partition, len(log) - 1)

    def _pop(self) -> tuple[str, bytes, bytes] | None:
        with self._state.changed:
            if not self._pending:
                return None
            item = self._pending.popleft()
            self._pending_bytes -= len(item[1]) + len(item[2])
            self._state.changed.notify_all()
            return item

    def _lose(self, item: tuple[str, bytes, bytes], reason: str) -> None:
        self._counts.failed += 1
        if self._on_loss is not None:
            self._on_loss(Loss(*item, reason))


class MemoryReader:
    """See `infra.event_bus_base.Reader`."""

    def __init__(self, state: _State, topic: str, backlog: int | None) -> None:
        self._state = state
        self._topic = topic
        self._backlog = backlog
        self._generation: int | None = None
        self._positions: list[int] = []

    def poll(self, timeout_s: float) -> list[Record]:
        with self._state.changed:
            self._state.changed.wait_for(self._has_news, timeout_s)
            if not self._state.is_up:
                return []
            topic = self._state.topics[self._topic]
            if self._generation is None:
                self._start(topic)
            elif self._generation != topic.generation:
                self._generation = None
                raise ResetRequired(f"{self._topic}: the topic was created again")
            return self._take(topic)

    def is_connected(self) -> bool:
        return self._state.is_up and self._generation is not None

    def is_caught_up(self) -> bool:
        return self.lag() == 0

    def lag(self) -> int | None:
        with self._state.changed:
            if self._generation is None:
                return None
            logs = self._state.topics[self._topic].logs
            ends = [len(log) for log in logs]
            return sum(max(0, e - p) for e, p in zip(ends, self._positions, strict=True))

    def last_error(self) -> str:
        return "" if self._state.is_up else "the bus is down"

    def close(self) -> None:
        self._generation = None

    def _has_news(self) -> bool:
        if not self._state.is_up:
            return False
        return self._generation is None or self._generation != self._current() or bool(self.lag())

    def _current(self) -> int:
        return self._state.topics[self._topic].generation

    def _start(self, topic: _Topic) -> None:
        self._generation = topic.generation
        ends = [len(log) for log in topic.logs]
        self._positions = [
            0 if self._backlog is None else max(0, end - self._backlog) for end in ends
        ]

    def _take(self, topic: _Topic) -> list[Record]:
        records: list[Record] = []
        for partition, log in enumerate(topic.logs):
            start = self._positions[partition]
            part = log[start : start + MAX_POLL_RECORDS - len(records)]
            records += part
            self._positions[partition] += len(part)
        return records
