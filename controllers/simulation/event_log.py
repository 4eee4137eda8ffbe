"""The way of records from workers to the routers' table: late, sometimes lost, then repaired.

A record that is lost leaves a hole in `seq`. The table takes the worker for stale at its next
record and a snapshot is asked for, as the routers of production do. All routers read the same log
equally late, so one table serves them all. Times are in ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeAlias

from controllers.events import EventBatch, Load, Removed
from controllers.routing_table import RoutingTable

OnLoad: TypeAlias = Callable[[str, Load, float], None]
OnRemoved: TypeAlias = Callable[[str, Sequence[str], float], None]

ASK_MS = 20.0  # from the question to the snapshot on the log
RETRY_MS = 1000.0  # a worker is asked at most so often


class EventLog:
    """`on_load(worker, load, now)` hears of load records, `on_removed(worker, hashes, now)` of what
    caches lost, if anybody wants to know; `ask(worker, at)` brings a snapshot."""

    def __init__(
        self,
        table: RoutingTable,
        lag_ms: float,
        loss: float,
        rng: Random,
        on_load: OnLoad,
        on_removed: OnRemoved | None,
        ask: Callable[[str, float], None],
    ) -> None:
        self.num_lost = 0
        self.num_stale = 0
        self._table = table
        self._lag_ms = lag_ms
        self._loss = loss
        self._rng = rng
        self._on_load = on_load
        self._on_removed = on_removed
        self._ask = ask
        self._asked_at: dict[str, float] = {}
        self._on_the_way: deque[tuple[float, EventBatch]] = deque()

    def publish(self, batch: EventBatch, now: float) -> None:
        """The first record of an epoch is never lost: a worker does not start without it."""
        if self._loss and batch.seq and self._rng.random() < self._loss:
            self.num_lost += 1
        elif self._lag_ms:
            self._on_the_way.append((now + self._lag_ms, batch))
        else:
            self._apply(batch, now)

    def deliver(self, now: float) -> None:
        """Everything that has arrived by now."""
        on_the_way = self._on_the_way
        while on_the_way and on_the_way[0][0] <= now:
            at, batch = on_the_way.popleft()
            self._apply(batch, at)

    def _apply(self, batch: EventBatch, now: float) -> None:
        applied = self._table.apply(batch, now / 1000.0)
        self.num_stale += applied.went_stale is not None
        for event in batch.events:
            if isinstance(event, Load):
                self._on_load(batch.worker, event, now)
            elif isinstance(event, Removed) and self._on_removed is not None:
                self._on_removed(batch.worker, event.hashes, now)
        if applied.is_stale and now - self._asked_at.get(batch.worker, -RETRY_MS) >= RETRY_MS:
            self._asked_at[batch.worker] = now
            self._ask(batch.worker, now + ASK_MS)
