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
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from controllers.blocks import HASH_SCHEME
from controllers.cost_model import CostModel
from controllers.errors import BusError, ExecutorDead, NotReady, Overloaded
from controllers.events import Load, encode
from controllers.placement import Placement, Query
from controllers.replica_meter import TierTarget
from controllers.routing_table import RoutingTable
from controllers.suspects import Suspects
from infra.event_bus_base import Bus, Topics
from infra.settings import Settings
from infra.settings_sections import FailoverSettings
from infra.table_feed import TableFeed
from serve_app.describe import describe_feed, describe_routing, describe_workers
from serve_app.entrance import Entrance
from serve_app.executors.base import ExecutorInfo
from serve_app.fleet import Ask, Route
from serve_app.members import Member, dp_rank_of, replica_of
from serve_app.outcome import Outcome
from serve_app.retention_keeper import RetentionKeeper
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
        self._entrance = Entrance(settings, clock)
        self._retention = RetentionKeeper()
        self._feed = TableFeed(
            bus=bus,
            topics=self._topics,
            table=RoutingTable(settings.executor.block_size, HASH_SCHEME),
            settings=settings.events,
            on_load=self._on_load,
            on_removed=self._retention.removed,
            clock=clock,
        )
        self._producer = bus.producer(linger_s=DECISION_LINGER_S)
        self._members: dict[str, Member] = {}
        self._info: ExecutorInfo | None = None
        self._in_flight: dict[str, Outcome] = {}
        self._counters = RoutingCounters()
        self._suspects = Suspects(SUSPECTED_S)
        self._ready_by: float | None = None  # set when the first member is seen
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
        self._producer.close(1.0)

    def configure(self, settings: Settings) -> None:
        """New policies; what is known of the fleet stays."""
        self._settings = settings
        with self._lock:
            self._placement.configure(settings.routing)
        self._entrance.configure(settings)

    def set_members(self, metadata: Mapping[str, Mapping[str, Any]]) -> None:
        """Replica id -> what the replica said of itself when it became ready."""
        members = {uid: Member.of(said) for uid, said in metadata.items() if said}
        workers = [w for member in members.values() for w in member.workers]
        new_workers = sorted(set(workers) - set(self._workers()))
        self._members = members
        for member in members.values():
            self._info = member.info  # they are one deployment
        self._feed.set_members(workers)
        num_blocks = {
            w: m.info.num_blocks.get("gpu", 0) for m in members.values() for w in m.workers
        }
        with self._lock:
            self._placement.set_workers(num_blocks)
        self._retention.set_workers(num_blocks)
        if members and self._ready_by is None:
            self._ready_by = self._clock() + self._settings.events.ready_timeout_s
        if new_workers and self._on_new_workers is not None:
            self._on_new_workers(new_workers)

    @property
    def failover(self) -> FailoverSettings:
        return self._settings.failover

    @property
    def block_size(self) -> int:
        return self._settings.executor.block_size

    def info(self) -> ExecutorInfo:
        """Of any member, also while there is none for a moment, as when the only one takes in new
        settings: requests then wait for it in the router. Raises NotReady before the first one."""
        if self._info is None:
            raise NotReady("no worker is up yet")
        return self._info

    def begin(self, ask: Ask, route: Route) -> Outcome:
        """Let the request in; others may have to give way. Raises RateLimited or Overloaded."""
        outcome = Outcome(ask, route, self._clock)
        try:
            displaced = self._entrance.enter(ask, self._feed.table)
        except Overloaded as error:
            self._counters.count_refusal(ask, error)
            raise
        self._in_flight[ask.request.request_id] = outcome
        for request_id, why in displaced.items():
            self._in_flight[request_id].refuse(why)
        return outcome

    def place(self, request_id: str, refused: Collection[str] = ()) -> str:
        """Choose and reserve; the replica id. Raises NotReady when every worker is refused,
        Overloaded when all gates are full or none can be in time."""
        outcome = self._in_flight[request_id]
        excluded = {
            w for uid in refused if uid in self._members for w in self._members[uid].workers
        }
        excluded |= outcome.failed_workers
        excluded |= self._entrance.full_gates(outcome.ask, set(self._workers()) - excluded)
        now, usable = self._clock(), set(self._workers()) - excluded
        with self._lock:
            suspected = self._suspects.among(usable, now)
            placed = self._placement.choose(
                query_of(outcome.current, self._entrance.ttft_left_ms(outcome)),
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
        left_ms = self._entrance.ttft_left_ms(outcome)
        return encode_call(
            Call(
                request=msgspec.structs.replace(
                    ask.request,
                    dp_rank=dp_rank_of(outcome.route.worker),
                    retention=self._retention.retention(outcome, self._clock()),
                ),
                uncached_tokens=ask.num_tokens - outcome.route.predicted_cached_tokens,
                first_token_timeout_s=tier.first_token_timeout_s,
                inter_token_timeout_s=tier.inter_token_timeout_s,
                tenant_weight=self._entrance.weight_of(ask.tenant),
                max_wait_s=None if left_ms is None else left_ms / 1e3,
                target=TierTarget(outcome.ask.tier, tier.rank, tier.ttft_slo_ms, tier.itl_slo_ms),
            )
        )

    def failed(self, request_id: str, is_refusal: bool = False) -> None:
        """The worker of this attempt failed; the next attempt must go elsewhere.

        So do other requests for a while, unless it only refused.
        """
        outcome = self._in_flight[request_id]
        outcome.failed_workers.add(outcome.route.worker)
        if is_refusal:
            self._entrance.gate_refused(outcome)
        with self._lock:
            if not is_refusal:
                self._suspects.fail(outcome.route.worker, self._clock())
            self._placement.release(request_id, self._clock(), 0)

    def first_token(self, request_id: str) -> None:
        outcome = self._in_flight[request_id]
        with self._lock:
            self._suspects.clear(outcome.route.worker)
            self._placement.first_token(request_id, self._clock())
        self._entrance.started(outcome)

    def finish(self, outcome: Outcome, status: str) -> None:
        """Release what was reserved, tell the log what came of it. The first call counts."""
        if outcome.status:
            return
        outcome.status = status
        request_id = outcome.ask.request.request_id
        self._in_flight.pop(request_id, None)
        self._entrance.left(outcome)
        with self._lock:
            self._placement.release(request_id, self._clock(), outcome.num_output_tokens)
        self._retention.finished(outcome, self._clock())
        self._counters.count(outcome)
        record = outcome.record(self._settings.model.name or self._model_name())
        try:
            self._producer.publish(self._topics.decisions, request_id.encode(), encode(record))
        except BusError as error:
            logger.warning("decision record of %s: %s", request_id, error)

    def begin_quietly(self, ask: Ask) -> Outcome:
        """As `begin`, for work of our own: in nobody's limits, counters or records."""
        outcome = Outcome(ask, Route(), self._clock)
        self._in_flight[ask.request.request_id] = outcome
        return outcome

    def finish_quietly(self, outcome: Outcome) -> None:
        request_id = outcome.ask.request.request_id
        self._in_flight.pop(request_id, None)
        with self._lock:
            self._placement.release(request_id, self._clock(), 0)
        self._retention.finished(outcome, self._clock())

    def overlap(self, worker: str, hashes: Sequence[int]) -> int | None:
        """Leading blocks that the worker is known to hold; None if it is no member."""
        if worker not in self._workers():
            return None
        found = self._feed.table.overlap(hashes).get(worker)
        return 0 if found is None else found.num_blocks

    def explain(self, ask: Ask) -> dict[str, Any]:
        """Every worker's figures and the choice, without reserving. Raises NotReady."""
        self.info()
        with self._lock:
            return self._placement.explain(query_of(ask), self._feed.table, self._clock())

    def readiness(self) -> str | None:
        """Ready when every member's blocks were known once, or the bound on waiting has passed."""
        if not self._members:
            return None if self._settings.autoscaling.may_be_zero else "no worker is up yet"
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
        self._retention.tick(now)
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
                    "waiting": self._entrance.num_waiting,
                    "reserved": self._placement.num_reserved,
                    "reservations_expired": self._placement.num_expired,
                },
            }


def query_of(ask: Ask, max_ttft_ms: float | None = None) -> Query:
    return Query(
        request_id=ask.request.request_id,
        hashes=ask.hashes,
        num_tokens=ask.num_tokens,
        rank=ask.request.service_rank,
        max_ttft_ms=max_ttft_ms,
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
