"""The routing state of one ingress process: who is in flight, and everybody who has a word in it.

Importable state on purpose: Serve pickles the router class by value, so only a module can hold
what the router, the fleet and the HTTP edge share. `install` is called once by the ingress. Knows
neither Ray nor HTTP; decides nothing: who is let in says `entrance`, where a request goes `placer`,
what is kept of it `retention_keeper`, what happens to it in between `attempts`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controllers.blocks import HASH_SCHEME
from controllers.errors import ExecutorDead, Overloaded
from controllers.events import Load
from controllers.routing_table import RoutingTable
from infra.event_bus_base import Bus, Topics
from infra.settings import Settings
from infra.settings_sections import FailoverSettings
from infra.table_feed import TableFeed
from serve_app.attempts import Attempts, query_of
from serve_app.decision_log import DecisionLog
from serve_app.describe import (
    describe_bookings,
    describe_feed,
    describe_routing,
    describe_workers,
)
from serve_app.entrance import Entrance
from serve_app.executors.base import ExecutorInfo
from serve_app.fleet import Ask, Route
from serve_app.membership import Membership
from serve_app.outcome import Outcome
from serve_app.placer import Placer
from serve_app.retention_keeper import RetentionKeeper


class Routing:
    """Used by the event loop, except `set_members`, which may come from Serve's router thread.

    The parts that other threads use have their own locks: feed, placer, retention keeper.
    Overlaps are looked up without the feed's, so a large snapshot being applied stalls no request.
    """

    def __init__(
        self,
        settings: Settings,
        bus: Bus,
        clock: Callable[[], float] = time.monotonic,
        seed: int | None = None,
    ) -> None:
        self.id = uuid.uuid4().hex[:8]
        self._settings = settings
        self._clock = clock
        topics = Topics(settings.kafka.topic_prefix)
        self._entrance = Entrance(settings, clock)
        self._retention = RetentionKeeper(settings, bus, self.id, clock)
        self._feed = TableFeed(
            bus=bus,
            topics=topics,
            table=RoutingTable(settings.executor.block_size, HASH_SCHEME),
            settings=settings.events,
            on_load=self._on_load,
            on_removed=self._retention.removed,
            clock=clock,
        )
        self._placement = Placer(
            settings,
            self._feed.table,
            bus,
            router=self.id,
            seed=seed,
            clock=clock,
            exclude_of=lambda query: self.attempts.excluded(query),
            losses=self._retention,
        )
        self._members = Membership(clock)
        self._log = DecisionLog(bus, topics.decisions)
        self._in_flight: dict[str, Outcome] = {}
        self.attempts = Attempts(
            settings,
            self._in_flight,
            self._placement,
            self._entrance,
            self._retention,
            self._members,
            clock,
        )
        self._on_new_workers: Callable[[list[str]], None] | None = None

    def start(
        self,
        ask_for_snapshots: Callable[[list[str]], None],
        on_new_workers: Callable[[list[str]], None] | None = None,
    ) -> None:
        """`on_new_workers` is called by whoever calls `set_members`."""
        self._on_new_workers = on_new_workers
        self._feed.start(ask_for_snapshots)

    def close(self) -> None:
        self._feed.close()
        self._placement.close()
        self._retention.close()
        self._log.close()

    def configure(self, settings: Settings) -> None:
        """New policies; what is known of the fleet stays."""
        self._settings = self.attempts.settings = settings
        self._placement.configure(settings)
        self._entrance.configure(settings)
        self._retention.configure(settings)

    def set_members(self, metadata: Mapping[str, Mapping[str, Any]]) -> None:
        """Replica id -> what the replica said of itself when it became ready."""
        known = set(self._members.workers())
        self._members.replace(metadata, self._settings.events.ready_timeout_s)
        workers, num_blocks = self._members.workers(), self._members.num_blocks()
        self._feed.set_members(workers)
        self._entrance.set_gates(len(self._members.by_replica))
        self._placement.set_workers(num_blocks)
        self._retention.set_workers(num_blocks)
        new_workers = sorted(set(workers) - known)
        if new_workers and self._on_new_workers is not None:
            self._on_new_workers(new_workers)

    @property
    def failover(self) -> FailoverSettings:
        return self._settings.failover

    @property
    def block_size(self) -> int:
        return self._settings.executor.block_size

    def info(self) -> ExecutorInfo:
        """What the workers have in common. Raises NotReady before the first one was seen."""
        return self._members.info()

    def begin(self, ask: Ask, route: Route) -> Outcome:
        """Let the request in; others may have to give way. Raises RateLimited or Overloaded."""
        outcome = Outcome(ask, route, self._clock)
        try:
            displaced = self._entrance.enter(ask, self._feed.table)
        except Overloaded as error:
            self._log.not_let_in(ask, error)
            raise
        self._in_flight[ask.request.request_id] = outcome
        for request_id, why in displaced.items():
            self._in_flight[request_id].refuse(why)
            self._placement.withdraw(request_id)
        return outcome

    def finish(self, outcome: Outcome, status: str) -> None:
        """Release what was reserved, tell the log what came of it. The first call counts."""
        if outcome.status:
            return
        outcome.status = status
        self._entrance.left(outcome)
        self._forget(outcome)
        self._log.ended(outcome, self._settings.model.name or self._members.model_name())

    def begin_quietly(self, ask: Ask) -> Outcome:
        """As `begin`, for work of our own: in nobody's limits, counters or records."""
        outcome = Outcome(ask, Route(), self._clock)
        self._in_flight[ask.request.request_id] = outcome
        return outcome

    def finish_quietly(self, outcome: Outcome) -> None:
        self._forget(outcome)

    def _forget(self, outcome: Outcome) -> None:
        request_id = outcome.ask.request.request_id
        self._in_flight.pop(request_id, None)
        self._placement.release(request_id, outcome.num_output_tokens)
        self._retention.finished(outcome, self._clock())

    def overlap(self, worker: str, hashes: Sequence[int]) -> int | None:
        """Leading blocks that the worker is known to hold; None if it is no member."""
        if worker not in self._members.workers():
            return None
        found = self._feed.table.overlap(hashes).get(worker)
        return 0 if found is None else found.num_blocks

    def explain(self, ask: Ask) -> dict[str, Any]:
        """Every worker's figures and the choice, without reserving. Raises NotReady."""
        self.info()
        return self._placement.explain(query_of(ask), self._clock())

    def readiness(self) -> str | None:
        """None, or why requests cannot be served yet."""
        return self._members.readiness(self._feed.missing(), self._settings.autoscaling.may_be_zero)

    def check_health(self) -> None:
        if not self._feed.is_alive():
            raise ExecutorDead("the table feed has ended")
        self._placement.check_health()

    def _on_load(self, worker: str, load: Load, now: float) -> None:
        self._retention.tick(now)
        self._placement.on_load(worker, load, now)

    def describe(self) -> dict[str, Any]:
        """The JSON of GET /fleet."""
        with self._feed.lock:
            return {
                "model": self._members.model_name(),
                "block_size": self._settings.executor.block_size,
                "ready": self.readiness() is None,
                "ingress": describe_feed(self._feed, self.id),
                "workers": describe_workers(
                    self._feed.table, self._members.by_replica, self._clock()
                ),
                "retention": self._retention.describe(),
                "bookings": describe_bookings(self._placement.bookings()),
                "routing": {
                    **describe_routing(self._log.counters),
                    "decision_records_lost": self._log.num_lost,
                    "in_flight": len(self._in_flight),
                    "waiting": self._entrance.num_waiting,
                    "held": self._placement.num_held,
                    "pieces": self.attempts.num_pieces,
                    "handed_back": self.attempts.num_handed_back,
                    "reserved": self._placement.num_reserved,
                    "reservations_expired": self._placement.num_expired,
                },
            }


_current: list[Routing] = []


def install(settings: Settings, bus: Bus) -> Routing:
    """Make the process's routing state. Called once, by the ingress's constructor."""
    _current[:] = [Routing(settings, bus)]
    return _current[0]


def current() -> Routing:
    """The installed state; raises RuntimeError in a process that is no ingress."""
    if not _current:
        raise RuntimeError("no routing state in this process: only an ingress routes requests")
    return _current[0]
