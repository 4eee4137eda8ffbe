"""Who starts, drains and is gone in a simulated fleet that scales, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import msgspec
import pytest

from controllers.autoscaling_settings import AutoscalingSettings
from controllers.replica_meter import TierTarget
from controllers.routing_table import RoutingTable
from controllers.simulation.agenda import Agenda, Kind
from controllers.simulation.asks import Asks
from controllers.simulation.cache import Ask
from controllers.simulation.cache_store import CacheShape
from controllers.simulation.engine import Ended, EngineShape, Job
from controllers.simulation.engines import Engines
from controllers.simulation.event_log import EventLog
from controllers.simulation.scaler import Change, Present, Scaler
from controllers.simulation.settings import FleetSettings
from controllers.simulation.timing import DYNAMO_MOCKER
from controllers.simulation.trace import TRACE_BLOCK, Row
from controllers.simulation.turnover import Turnover
from controllers.simulation.worker import State
from controllers.simulation.worker_hours import Span, busiest_over_mean, most_at_once, worker_s
from controllers.simulation.worker_stats import WorkerStats
from controllers.waiting import Waiting
from tests.autoscaling_rig import report
from tests.batches import load, stored
from tests.simulation_rig import trace_of

POLICY = AutoscalingSettings(enabled=True, min_replicas=1, max_replicas=6)
HOT, COLD = report(hit_tokens_per_s=100.0, cached_blocks=900), report(cached_blocks=900)


def scaler(target: int, **settings: object) -> Scaler:
    chosen = msgspec.structs.replace(POLICY, min_replicas=target, **settings)
    return Scaler(chosen)


def test_the_target_is_made_up_for() -> None:
    present = Present(starting=["w4"], up={"w1": HOT, "w3": HOT})
    assert scaler(5).decide(present, 0, 1e3) == Change(num_to_start=2)
    assert scaler(3).decide(present, 0, 1e3) == Change()


@pytest.mark.parametrize(("coldest_first", "drained"), [(True, ["w2"]), (False, ["w3"])])
def test_who_has_not_started_goes_first(coldest_first: bool, drained: list[str]) -> None:
    present = Present(starting=["w4", "w5"], up={"w1": HOT, "w2": COLD, "w3": HOT})
    change = scaler(2, coldest_first=coldest_first).decide(present, 0, 1e3)
    assert change == Change(cancelled=["w5", "w4"], drained=drained)
    assert scaler(4).decide(present, 0, 1e3) == Change(cancelled=["w5"], drained=[])


class Draining:
    """Two workers, of which the first one drains with a request on it. `changes`: what was lost
    with each change of who takes requests."""

    def __init__(self) -> None:
        trace = trace_of([Row(0.0, 4096, 50, list(range(8)))])
        policy = msgspec.structs.replace(POLICY, min_replicas=1, max_replicas=1)
        settings = FleetSettings(autoscaling=policy)
        self.table = RoutingTable(TRACE_BLOCK)
        self.engines = Engines(trace, settings, has_gate=True)
        self.agenda = Agenda()
        self.changes: list[Sequence[Job]] = []
        log = EventLog(self.table, 0.0, 0.0, Random(0), print, None, print)
        self.turnover = Turnover(
            settings, self.engines, self.agenda, log, True, self.changes.append
        )
        assert self.turnover.scaler is not None
        self.turnover.scaler.target = 2  # one more than is allowed
        self.turnover.begin()
        self.worker = self.engines.workers[0]  # of equals the first one goes
        self.job = Job(0, 4096, 50, Asks(trace, None).of(trace.requests[0]))
        self.worker.submit(self.job, Waiting("0", 4096, 0.0), 0.0)
        self.worker.wake(0.0)
        self.turnover.scale(0)


@pytest.mark.parametrize(("is_idle", "next_s"), [(False, 0.5), (True, 3600.0 - 60.0)])
def test_idle_workers_tell_of_it_again_a_minute_before_something_happens(
    is_idle: bool, next_s: float
) -> None:
    trace, settings = trace_of([Row(0.0, 10, 1, [])]), FleetSettings(num_workers=1)
    engines, agenda = Engines(trace, settings, has_gate=True), Agenda()
    log = EventLog(RoutingTable(TRACE_BLOCK), 0.0, 0.0, Random(0), print, None, print)
    fleet = Turnover(settings, engines, agenda, log, True, print)
    fleet.begin()
    agenda.note(3_600_000.0, Kind.ARRIVAL)
    assert (agenda.take(), agenda.now) == ((Kind.LOAD, 0), 500.0)
    fleet.tell_load(0, is_idle)
    assert agenda.take() == (Kind.LOAD, 0)
    assert agenda.now == pytest.approx(500.0 + 1e3 * next_s, abs=500.0)
    fleet.tell_load(0, is_idle)
    since = agenda.now
    assert agenda.take() == (Kind.LOAD, 0)
    assert agenda.now == since + 500.0


def test_a_worker_that_drains_ends_what_it_has_before_it_says_that_it_is_down() -> None:
    fleet = Draining()
    worker = fleet.worker
    assert [w.state for w in fleet.engines.workers] == [State.DRAINING, State.UP]
    assert (list(fleet.engines.up()), fleet.changes) == (["w1"], [()])
    while worker.here:
        fleet.turnover.tell_load(0)
        assert worker.state is State.DRAINING
        now = worker.engine.end_ms
        worker.finish(now)
        worker.go_on(now)
    assert set(fleet.table.workers) == {"w0", "w1"}
    fleet.turnover.tell_load(0)
    assert worker.state is State.GONE
    assert set(fleet.table.workers) == {"w1"}
    fleet.turnover.go_down(0)  # when its time would have run out
    assert fleet.changes == [()]


def test_what_does_not_drain_in_time_is_lost_with_its_worker() -> None:
    fleet = Draining()
    told = [fleet.agenda.take() for _ in range(4)]
    assert [kind for kind, _ in told] == [Kind.LOAD, Kind.LOAD, Kind.SCALE, Kind.SCALE]
    assert fleet.agenda.take() == (Kind.DOWN, 0)
    assert fleet.agenda.now == 3_600_000.0
    fleet.turnover.go_down(0)
    assert fleet.changes == [(), [fleet.job]]
    assert fleet.worker.state is State.GONE
    assert fleet.worker.span == Span(0.0, 3_600_000.0)


def test_a_worker_measures_itself_as_a_replica_does() -> None:
    shape = EngineShape(CacheShape(1000), DYNAMO_MOCKER, 32, 1000)
    stats = WorkerStats(shape, POLICY, 0.0)
    stats.on_events([stored(None, [16, 32, 48], priority=80)], 100.0)
    stats.on_load(load(num_queued=5, hit_tokens=0, prompt_tokens=0), 2, 500.0)
    job = Job(7, 1024, 3, Ask([], [], 0))
    stats.arrived(job, TierTarget("standard", 1, 2000.0, 100.0), 1024, 20_000.0, 1.5)
    stats.arrived(Job(8, 512, 1, Ask([], [], 0), True), TierTarget(), 512, 20_000.0, 0.0)
    stats.on_load(load(num_queued=5, hit_tokens=320, prompt_tokens=640), 2, 20_400.0)
    stats.ended(Ended([job], []), 20_600.0)  # 2.1 s after it came
    stats.ended(Ended([], [job]), 21_000.0)  # 200 ms from token to token
    found = stats.report(1, 21_000.0)
    assert found.num_waiting == 3 + 1
    assert (found.block_size, found.max_running) == (32, 256)
    assert found.content_tokens == pytest.approx(3 * 512 * 0.8)
    assert found.hit_tokens_per_s == pytest.approx(found.prompt_tokens_per_s / 2)
    assert found.hit_tokens_per_s > 0.0
    tier = found.tiers["standard"]
    assert (tier.num_ttft, tier.num_ttft_missed, tier.num_itl, tier.num_itl_missed) == (1, 1, 1, 1)
    assert tier.backlog_ms > 0.0  # the piece has not ended


def test_worker_hours() -> None:
    spans = [Span(0.0, 4000.0), Span(1000.0, math.inf), Span(4000.0, 6000.0), Span(9e3, math.inf)]
    assert worker_s(spans, 8000.0) == [4.0, 7.0, 2.0, 0.0]
    assert most_at_once(spans) == 2
    assert busiest_over_mean([1000.0, 1000.0, 1000.0, 0.0], [4.0, 7.0, 2.0, 0.0]) == pytest.approx(
        (1.0 / 2.0) / (3.0 / 13.0)
    )


def test_who_dies_before_it_has_started_never_comes_up() -> None:
    fleet = Draining()
    starting = fleet.engines.add(0.0)
    fleet.turnover.go_down(starting)
    fleet.turnover.start(starting)
    assert fleet.engines.workers[starting].state is State.GONE
    assert fleet.changes == [()]
