"""The routing state of one ingress process: who is in flight, and everybody who has a word in it.

Importable state on purpose: Serve pickles the router class by value, so only a module can hold
what the router, the fleet and the HTTP edge share. `install` is called once by the ingress. Knows
neither Ray nor HTTP; decides nothing: who is let in says `entrance`, where a request goes `placer`,
what is kept of it `retention_keeper`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from controllers.blocks import HASH_SCHEME
from controllers.errors import ExecutorDead, Overloaded
from controllers.events import Load
from controllers.placement import Query
from controllers.replica_meter import TierTarget
from controllers.routing_table import RoutingTable
from infra.event_bus_base import Bus, Topics
from infra.settings import Settings
from infra.settings_sections import FailoverSettings
from infra.table_feed import TableFeed
from serve_app.decision_log import DecisionLog
from serve_app.describe import describe_feed, describe_routing, describe_workers
from serve_app.entrance import Entrance
from serve_app.executors.base import ExecutorInfo
from serve_app.fleet import Ask, Route
from serve_app.members import dp_rank_of, replica_of
from serve_app.membership import Membership
from serve_app.outcome import Outcome
from serve_app.placer import Placer
from serve_app.retention_keeper import RetentionKeeper
from serve_app.wire import Call, encode_call


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
        self._retention = RetentionKeeper()
        self._feed = TableFeed(
            bus=bus,
            topics=topics,
            table=RoutingTable(settings.executor.block_size, HASH_SCHEME),
            settings=settings.events,
            on_load=self._on_load,
            on_removed=self._retention.removed,
            clock=clock,
        )
        self._placement = Placer(settings, self._feed.table, seed)
        self._members = Membership(clock)
        self._log = DecisionLog(bus, topics.decisions)
        self._in_flight: dict[str, Outcome] = {}
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
        self._log.close()

    def configure(self, settings: Settings) -> None:
        """New policies; what is known of the fleet stays."""
        self._settings = settings
        self._placement.configure(settings.routing)
        self._entrance.configure(settings)

    def set_members(self, metadata: Mapping[str, Mapping[str, Any]]) -> None:
        """Replica id -> what the replica said of itself when it became ready."""
        known = set(self._members.workers())
        self._members.replace(metadata, self._settings.events.ready_timeout_s)
        workers, num_blocks = self._members.workers(), self._members.num_blocks()
        self._feed.set_members(workers)
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
        return outcome

    def place(self, request_id: str, refused: Collection[str] = ()) -> str:
        """Choose and reserve; the replica id. Raises NotReady when every worker is refused,
        Overloaded when all gates are full or none can be in time."""
        outcome = self._in_flight[request_id]
        workers = set(self._members.workers())
        excluded = self._members.workers_of(refused) | outcome.failed_workers
        excluded |= self._entrance.full_gates(outcome.ask, workers - excluded)
        query = query_of(outcome.current, self._entrance.ttft_left_ms(outcome))
        placed = self._placement.choose(query, workers, excluded, self._clock())
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
        worker, now = outcome.route.worker, self._clock()
        outcome.failed_workers.add(worker)
        if is_refusal:
            self._entrance.gate_refused(outcome)
            self._placement.release(request_id, 0, now)
        else:
            self._placement.failed(request_id, worker, now)

    def first_token(self, request_id: str) -> None:
        outcome = self._in_flight[request_id]
        self._placement.first_token(request_id, outcome.route.worker, self._clock())
        self._entrance.started(outcome)

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
        request_id, now = outcome.ask.request.request_id, self._clock()
        self._in_flight.pop(request_id, None)
        self._placement.release(request_id, outcome.num_output_tokens, now)
        self._retention.finished(outcome, now)

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
                "routing": {
                    **describe_routing(self._log.counters),
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
