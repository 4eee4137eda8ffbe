"""Log -> RoutingTable: one thread in each ingress process.

Owns the reader, the lock around the table, the counters of what was read and the requests for
snapshots. Does not decide anything about placement. No consumer group: every router reads all.

1. A record that cannot be decoded is counted and skipped; the thread goes on.
2. A worker that is stale is asked for a snapshot, at most once in RETRY_S.
3. If the log is another one than before, the table is emptied and asks for everything again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from controllers.errors import EventError
from controllers.events import Load, Removed
from controllers.record_codec import decode_batch
from controllers.routing_table import RoutingTable
from controllers.worker_state import Applied, Outcome
from infra.event_bus_base import Bus, Reader, Record, ResetRequired, Topics
from infra.settings_sections import EventSettings

logger = logging.getLogger(__name__)

POLL_S = 0.1
RETRY_S = 1.0
# Records of each partition that a new reader goes back: may hold a snapshot, which saves asking.
BACKLOG = 500
# A worker that is no member of this fleet and silent for so long is forgotten.
FORGET_STRANGERS_S = 60.0

OnLoad = Callable[[str, Load, float], None]
OnRemoved = Callable[[str, Sequence[str], float], None]
AskForSnapshots = Callable[[list[str]], None]


@dataclass
class FeedCounters:
    """Since the start of the process."""

    num_records: int = 0
    num_applied: int = 0
    num_ignored: int = 0  # duplicates and older epochs
    num_bad: int = 0  # not decodable
    num_unknown_events: int = 0
    num_gaps: int = 0
    num_resets: int = 0
    num_snapshots_asked: int = 0
    lag_ms: float | None = None  # of the newest record, by the two clocks


class TableFeed:
    """`table` may be used by others only while `lock` is held; overlaps need none."""

    def __init__(
        self,
        *,
        bus: Bus,
        topics: Topics,
        table: RoutingTable,
        settings: EventSettings,
        on_load: OnLoad,
        on_removed: OnRemoved | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lock = threading.RLock()
        self.table = table
        self.counters = FeedCounters()
        self._bus = bus
        self._topic = topics.kv_events
        self._settings = settings
        self._on_load = on_load
        self._on_removed = on_removed
        self._clock = clock
        self._ask: AskForSnapshots = lambda workers: None
        self._members: frozenset[str] = frozenset()
        self._asked_at: dict[str, float] = {}
        self._reader: Reader | None = None
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="table-feed", daemon=True)

    def start(self, ask: AskForSnapshots) -> None:
        """`ask(workers)` is called on the feed's thread and must not block."""
        self.open(ask)
        self._thread.start()

    def open(self, ask: AskForSnapshots) -> None:
        """`start` without its thread: whoever calls `turn` is the thread."""
        self._ask = ask
        self._reader = self._bus.reader(self._topic, backlog=BACKLOG)

    def close(self) -> None:
        self._is_closing.set()
        if self._thread.is_alive():
            self._thread.join(2 * POLL_S + 1.0)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def set_members(self, workers: Collection[str]) -> None:
        """The workers of this fleet; what a former member held is forgotten."""
        with self.lock:
            for worker in self._members - set(workers):
                self.table.forget(worker)
                self._asked_at.pop(worker, None)
            self._members = frozenset(workers)

    def missing(self) -> list[str]:
        """Members whose state is not known, in order."""
        with self.lock:
            return sorted(w for w in self._members if self.table.is_stale(w))

    def is_connected(self) -> bool:
        return self._reader is not None and self._reader.is_connected()

    def _run(self) -> None:
        assert self._reader is not None
        while not self._is_closing.is_set():
            try:
                self.turn()
            except Exception:
                logger.exception("table feed")
                self._is_closing.wait(RETRY_S)
        self._reader.close()

    def turn(self) -> None:
        """One round: read, apply, look for silent and stale workers."""
        assert self._reader is not None
        try:
            records = self._reader.poll(POLL_S)
        except ResetRequired as error:
            logger.warning("event log: %s", error)
            self._reset()
            return
        for record in records:
            self._apply(record)
        now = self._clock()
        with self.lock:
            for worker in self.table.mark_silent(now, self._settings.heartbeat_timeout_s):
                if worker in self._members:
                    logger.warning("worker %s is silent; it scores no overlap", worker)
            self._forget_strangers(now)
        self._ask_for_snapshots(now)

    def _apply(self, record: Record) -> None:
        self.counters.num_records += 1
        try:
            batch, num_unknown = decode_batch(record.value)
            with self.lock:
                applied = self.table.apply(batch, self._clock())
        except EventError as error:
            self.counters.num_bad += 1
            log = logger.warning if self.counters.num_bad <= 10 else logger.debug
            log("record %d/%d skipped: %s", record.partition, record.offset, error)
            return
        self.counters.num_unknown_events += num_unknown
        self.counters.lag_ms = max(0.0, time.time() * 1e3 - batch.ts_ms)
        self._count(batch.worker, applied)
        if applied.outcome is Outcome.APPLIED:
            for event in batch.events:
                if isinstance(event, Load):
                    self._on_load(batch.worker, event, self._clock())
                elif isinstance(event, Removed) and self._on_removed is not None:
                    self._on_removed(batch.worker, event.hashes, self._clock())

    def _count(self, worker: str, applied: Applied) -> None:
        self.counters.num_gaps += applied.num_missing
        if applied.outcome is Outcome.APPLIED:
            self.counters.num_applied += 1
        else:
            self.counters.num_ignored += 1
        if applied.went_stale is not None and worker in self._members:
            logger.warning("worker %s is stale: %s", worker, applied.went_stale)
        if applied.has_healed and worker in self._members:
            logger.info("what worker %s holds is known", worker)

    def _reset(self) -> None:
        self.counters.num_resets += 1
        with self.lock:
            for worker in list(self.table.workers):
                self.table.forget(worker)

    def _forget_strangers(self, now: float) -> None:
        for worker, state in list(self.table.workers.items()):
            if worker not in self._members and now - state.heard_at > FORGET_STRANGERS_S:
                self.table.forget(worker)

    def _ask_for_snapshots(self, now: float) -> None:
        due = [w for w in self.missing() if now - self._asked_at.get(w, -RETRY_S) >= RETRY_S]
        if not due:
            return
        self._asked_at.update(dict.fromkeys(due, now))
        self.counters.num_snapshots_asked += len(due)
        self._ask(due)
