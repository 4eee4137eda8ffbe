"""The replica's side of the log: executor events -> numbered batches -> producer.

Owns the worker's mirror, its (epoch, seq) numbering, the heartbeat and every snapshot. One thread
calls the executor's `drain_events`; nothing here is on the token path.

1. What is published is a prefix of the executor's history, or a `Lost` marker comes first and a
   snapshot follows: a reader never has to guess.
2. `seq` has no holes among the records that the producer accepted.
3. Nothing is buffered here: what the bus does not take is not kept, the mirror is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from controllers.errors import BusError, ExecutorError
from controllers.event_split import split_events
from controllers.events import SCHEMA, Event, EventBatch, Load, Lost, WorkerDown, WorkerUp
from controllers.mirror import Mirror
from controllers.record_codec import encode
from infra.event_bus_base import Bus, BusHealth, Loss, Topics
from infra.settings_sections import EventSettings

logger = logging.getLogger(__name__)

# A snapshot row is about 70 bytes of JSON; twice that leaves room for long tier names.
SNAPSHOT_BYTES_PER_BLOCK = 140


class EventSource(Protocol):
    """What the publisher needs of an executor."""

    def drain_events(self, timeout_s: float) -> list[Event]: ...

    def load(self) -> Load: ...


@dataclass(frozen=True)
class WorkerIdentity:
    """Header fields of a worker's batches."""

    worker: str
    replica: str
    dp_rank: int
    model: str
    block_size: int


class EventPublisher:
    """Starts its thread with `start`; `close` publishes `worker_down` and ends it."""

    def __init__(
        self,
        *,
        source: EventSource,
        identity: WorkerIdentity,
        up: WorkerUp,
        bus: Bus,
        topics: Topics,
        settings: EventSettings,
        max_record_bytes: int,
        extra_queued: Callable[[], Mapping[int, tuple[int, int]]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`extra_queued()`: rank -> (requests, uncached tokens) waiting before the executor."""
        self._clock = clock
        self._source = source
        self._identity = identity
        self._up = up
        self._topic = topics.kv_events
        self._key = identity.worker.encode()
        self._settings = settings
        self._extra_queued = extra_queued
        self._max_blocks_per_part = max(1, max_record_bytes // SNAPSHOT_BYTES_PER_BLOCK)
        self._mirror = Mirror()
        self._producer = bus.producer(on_loss=self._on_loss)
        self.epoch = time.time_ns() // 1_000_000
        self._seq = 0
        self._num_snapshots = 0
        self._num_connects = 0
        self._has_lost = ""  # reason; while set, only a Lost marker and a snapshot may be published
        self._is_asked = threading.Event()
        self._is_closing = threading.Event()
        self._last_load_s = float("-inf")
        self._last_snapshot_s = 0.0
        self._next_drain_s = 0.0
        self._thread = threading.Thread(target=self._run, name="event-publisher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def request_snapshot(self) -> None:
        """Publish a snapshot soon. Any thread; requests that come together are one snapshot."""
        self._is_asked.set()

    def close(self, reason: str, timeout_s: float = 2.0) -> None:
        """Publish what is left and `worker_down`. Idempotent."""
        self._is_closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._publish([WorkerDown(reason=reason)])
        self._producer.close(timeout_s)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def health(self) -> BusHealth:
        """Of the connection to the bus; any thread."""
        return self._producer.health()

    def _on_loss(self, loss: Loss) -> None:
        self._has_lost = self._has_lost or f"record not acknowledged: {loss.reason}"

    def begin(self) -> None:
        """First records of the epoch: `worker_up`, an empty snapshot."""
        self._publish([self._up])
        self._publish_snapshot()

    def _run(self) -> None:
        self.begin()
        while not self._is_closing.is_set():
            try:
                self.turn(self._settings.load_interval_s / 2)
            except ExecutorError as error:
                logger.error("event publisher of %s ends: %s", self._identity.worker, error)
                return
            except Exception:
                # The mirror may have missed an event: say so, and go on with what it has.
                logger.exception("event publisher of %s", self._identity.worker)
                self._has_lost = self._has_lost or "publisher failed on an event"
                self._is_closing.wait(self._settings.load_interval_s)

    def turn(self, timeout_s: float) -> None:
        """One round: drain (waiting up to timeout_s for a first event), publish what is due."""
        events = self._source.drain_events(timeout_s)
        if events:
            # What a request leaves behind comes within a step or two: one record instead of three.
            wait_s = max(self._settings.linger_s, self._next_drain_s - self._clock())
            self._is_closing.wait(wait_s)
            self._next_drain_s = self._clock() + self._settings.drain_interval_s
            events += self._source.drain_events(0)
        for event in events:
            self._mirror.apply(event)
        if any(isinstance(event, Lost) for event in events):
            self._has_lost = self._has_lost or "the executor lost events"
        self._notice_reconnect()
        if self._has_lost:
            self._heal()
        else:
            self._publish_events(events)
        self._publish_due()

    def _publish_events(self, events: list[Event]) -> None:
        max_events = self._settings.max_events_per_record
        for group in split_events(events, max_events, self._max_blocks_per_part):
            if not self._publish(group):
                self._has_lost = "the bus took no more records"
                return

    def _notice_reconnect(self) -> None:
        num_connects = self._producer.health().num_connects
        if num_connects != self._num_connects:
            if self._num_connects:
                self._has_lost = self._has_lost or "the bus was away"
            self._num_connects = num_connects

    def _heal(self) -> None:
        """Once the bus takes records again: say that something is missing, then tell everything."""
        health = self._producer.health()
        if not health.is_connected or health.num_pending > self._settings.max_events_per_record:
            return
        reason, self._has_lost = self._has_lost, ""
        if not (self._publish([Lost(reason=reason)]) and self._publish_snapshot()):
            self._has_lost = reason

    def _publish_due(self) -> None:
        now = self._clock()
        if now - self._last_load_s >= self._settings.load_interval_s and not self._has_lost:
            self._last_load_s = now
            self._publish([self._load()])
        is_due = (
            self._is_asked.is_set()
            or now - self._last_snapshot_s >= self._settings.snapshot_interval_s
            or self._mirror.num_changed >= self._settings.snapshot_after_blocks
        )
        if is_due and not self._has_lost:
            self._is_asked.clear()
            if not self._publish_snapshot():
                self._has_lost = "the bus took no more records"

    def _load(self) -> Load:
        load = self._source.load()
        by_rank = dict(self._extra_queued())
        fields = {name: getattr(load, name) for name in load.__struct_fields__}
        fields["num_queued"] += sum(num for num, _ in by_rank.values())
        fields["queued_prefill_tokens"] += sum(tokens for _, tokens in by_rank.values())
        fields["queued_by_rank"] = by_rank
        return Load(**fields)

    def _publish_snapshot(self) -> bool:
        self._last_snapshot_s = self._clock()
        self._num_snapshots += 1
        parts = self._mirror.snapshot(self._up, self._num_snapshots, self._max_blocks_per_part)
        return all([self._publish([part]) for part in parts])

    def _publish(self, events: list[Event]) -> bool:
        batch = EventBatch(
            schema=SCHEMA,
            worker=self._identity.worker,
            replica=self._identity.replica,
            dp_rank=self._identity.dp_rank,
            model=self._identity.model,
            epoch=self.epoch,
            seq=self._seq,
            ts_ms=time.time_ns() // 1_000_000,
            block_size=self._identity.block_size,
            events=events,
        )
        try:
            is_accepted = self._producer.publish(self._topic, self._key, encode(batch))
        except BusError as error:  # larger than a record may be: readers must learn of the hole
            logger.error("record %d of %s: %s", self._seq, self._identity.worker, error)
            is_accepted = False
        self._seq += is_accepted
        return is_accepted
