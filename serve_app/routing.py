"""The routing state of one ingress process: table feed, placement, members, requests in flight.

Importable state on purpose: Serve pickles the router class by value, so only a module can hold
what the router, the fleet and the HTTP edge share. `install` is called once by the ingress. Knows
neither Ray nor HTTP; every decision is `controllers.placement`'s.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from controllers.blocks import HASH_SCHEME
from controllers.cost_model import CostModel
from controllers.errors import BusError, ExecutorDead, NotReady
from controllers.events import Load, encode
from controllers.placement import Placement, Query
from controllers.routing_table import RoutingTable
from controllers.suspects import Suspects
from infra.event_bus_base import Bus, Topics
from infra.settings import Settings
from infra.settings_sections import FailoverSettings
from infra.table_feed import TableFeed
from serve_app.describe import describe_feed, describe_routing, describe_workers
from serve_app.executors.base import ExecutorInfo
from serve_app.fleet import Ask, Route
from serve_app.members import Member, dp_rank_of, replica_of
from serve_app.outcome import Outcome
from serve_app.routing_counters import RoutingCounters
from serve_app.wire import Call, encode_call

logger = logging.getLogger(__name__)

# Nobody waits for decision records: sent together they cost a fraction.
DECISION_LINGER_S = 0.05
# Serve needs about so long to find out that a replica is gone and to tell its routers.
SUSPECTED_S = 5.0


class Routing:
    """Used by the event loop, except `set_members`, which may come from Serve's router thread.

    Two locks, never nested: the feed's guards the table's bookkeeping, ours the placement.
    `overlap` needs neither, so a large snapshot being applied stalls no request.
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
        self._topics = Topics(settings.kafka.topic_prefix)
        self._lock = threading.Lock()
        self._placement = Placement(
            settings.routing,
            CostModel(settings.executor.max_batched_tokens),
            random.Random(seed),
            max_running=settings.executor.max_batch_size,
        )
        self._feed = TableFeed(
            bus=bus,
            topics=self._topics,
            table=RoutingTable(settings.executor.block_size, HASH_SCHEME),
            settings=settings.events,
            on_load=self._on_load,
            clock=clock,
        )
        self._producer = bus.producer(linger_s=DECISION_LINGER_S)
        self._members: dict[str, Member] = {}
        self._in_flight: dict[str, Outcome] = {}
        self._counters = RoutingCounters()
        self._suspects = Suspects(SUSPECTED_S)
        self._ready_by: float | None = None  # set when the first member is seen

    def start(self, ask_for_snapshots: Callable[[list[str]], None]) -> None:
        self._feed.start(ask_for_snapshots)

    def close(self) -> None:
        self._feed.close()
        self._producer.close(1.0)

    def configure(self, settings: Settings) -> None:
        """New policies; what is known of the fleet stays."""
        self._settings = settings
        with self._lock:
            self._placement.configure(settings.routing)

    def set_members(self, metadata: Mapping[str, Mapping[str, Any]]) -> None:
        """Replica id -> what the replica said of itself when it became ready."""
        members = {uid: Member.of(said) for uid, said in metadata.items() if said}
        workers = [w for member in members.values() for w in member.workers]
        self._members = members
        self._feed.set_members(workers)
        with self._lock:
            self._placement.set_workers(
                {w: m.info.num_blocks.get("gpu", 0) for m in members.values() for w in m.workers}
            )
        if members and self._ready_by is None:
            self._ready_by = self._clock() + self._settings.events.ready_timeout_s

    @property
    def failover(self) -> FailoverSettings:
        return self._settings.failover

    def info(self) -> ExecutorInfo:
        """Of any member: they are one deployment. Raises NotReady."""
        for member in self._members.values():
            return member.info
        raise NotReady("no worker is up yet")

    def begin(self, ask: Ask, route: Route) -> Outcome:
        outcome = Outcome(ask, route, self._clock)
        self._in_flight[ask.request.request_id] = outcome
        return outcome

    def place(self, request_id: str, refused: Collection[str] = ()) -> str:
        """Choose and reserve; the replica id. Raises NotReady when every worker is refused."""
        outcome = self._in_flight[request_id]
        excluded = {
            w for uid in refused if uid in self._members for w in self._members[uid].workers
        }
        excluded |= outcome.failed_workers
        now, usable = self._clock(), set(self._workers()) - excluded
        with self._lock:
            suspected = self._suspects.among(usable, now)
            placed = self._placement.choose(
                query_of(outcome.current),
                self._feed.table,
                now,
                exclude=excluded | suspected,
            )
        outcome.on_placed(placed)
        return replica_of(placed.worker)

    def refused(self, request_id: str) -> set[str]:
        """The router's note of replicas that were full; it lives as long as the request."""
        return self._in_flight[request_id].refused

    def replica_of(self, request_id: str) -> str:
        return replica_of(self._in_flight[request_id].route.worker)

    def encode_call(self, request_id: str) -> bytes:
        """What the chosen replica receives."""
        outcome = self._in_flight[request_id]
        ask, tier = outcome.current, self._settings.tiers.rule(outcome.ask.tier)
        return encode_call(
            Call(
                request=msgspec.structs.replace(
                    ask.request, dp_rank=dp_rank_of(outcome.route.worker)
                ),
                uncached_tokens=ask.num_tokens - outcome.route.predicted_cached_tokens,
                first_token_timeout_s=tier.first_token_timeout_s,
                inter_token_timeout_s=tier.inter_token_timeout_s,
            )
        )

    def failed(self, request_id: str, is_refusal: bool = False) -> None:
        """The worker of this attempt failed; the next attempt must go elsewhere.

        So do other requests for a while, unless it only refused.
        """
        outcome = self._in_flight[request_id]
        outcome.failed_workers.add(outcome.route.worker)
        with self._lock:
            if not is_refusal:
                self._suspects.fail(outcome.route.worker, self._clock())
            self._placement.release(request_id, self._clock(), 0)

    def first_token(self, request_id: str) -> None:
        with self._lock:
            self._suspects.clear(self._in_flight[request_id].route.worker)
            self._placement.first_token(request_id, self._clock())

    def finish(self, outcome: Outcome, status: str) -> None:
        """Release what was reserved, tell the log what came of it. The first call counts."""
        if outcome.status:
            return
        outcome.status = status
        request_id = outcome.ask.request.request_id
        self._in_flight.pop(request_id, None)
        with self._lock:
            self._placement.release(request_id, self._clock(), outcome.num_output_tokens)
        self._counters.count(outcome)
        record = outcome.record(self._settings.model.name or self._model_name())
        try:
            self._producer.publish(self._topics.decisions, request_id.encode(), encode(record))
        except BusError as error:
            logger.warning("decision record of %s: %s", request_id, error)

    def explain(self, ask: Ask) -> dict[str, Any]:
        """Every worker's figures and the choice, without reserving. Raises NotReady."""
        self.info()
        with self._lock:
            return self._placement.explain(query_of(ask), self._feed.table, self._clock())

    def readiness(self) -> str | None:
        """Ready when every member's blocks were known once, or the bound on waiting has passed."""
        if not self._members:
            return "no worker is up yet"
        missing = self._feed.missing()
        if missing and self._ready_by is not None and self._clock() < self._ready_by:
            return f"waiting for what {len(missing)} of {len(self._workers())} workers hold"
        self._ready_by = float("-inf")  # a worker that falls silent later takes nothing away
        return None

    def check_health(self) -> None:
        if not self._feed.is_alive():
            raise ExecutorDead("the table feed has ended")

    def _workers(self) -> list[str]:
        return [w for member in self._members.values() for w in member.workers]

    def _model_name(self) -> str:
        return next((m.info.model for m in self._members.values()), "")

    def _on_load(self, worker: str, load: Load, now: float) -> None:
        with self._lock:
            if load.is_stalled:
                self._suspects.fail(worker, now)
            self._placement.on_load(worker, load, now)

    def describe(self) -> dict[str, Any]:
        """The JSON of GET /fleet."""
        with self._feed.lock:
            return {
                "model": self._model_name(),
                "block_size": self._settings.executor.block_size,
                "ready": self.readiness() is None,
                "ingress": describe_feed(self._feed, self.id),
                "workers": describe_workers(self._feed.table, self._members, self._clock()),
                "routing": {
                    **describe_routing(self._counters),
                    "in_flight": len(self._in_flight),
                    "reserved": self._placement.num_reserved,
                    "reservations_expired": self._placement.num_expired,
                },
            }


def query_of(ask: Ask) -> Query:
    return Query(
        request_id=ask.request.request_id,
        hashes=ask.hashes,
        num_tokens=ask.num_tokens,
        tier=ask.tier,
        request_type=ask.request_type,
        expected_output_tokens=None,
        pinned=ask.pinned_worker,
    )


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
