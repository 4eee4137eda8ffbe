"""The event loop of a simulated fleet: arrivals, iterations, the log, outages.

Owns time and what happens next. Decisions are the routers', what engines do is the workers'.
Times are in ms.

Simultaneous events go in the order of `Kind`, then of their making, so that a seed decides all.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from enum import IntEnum
from random import Random

from controllers.errors import SettingsError
from controllers.events import Load
from controllers.routing_table import RoutingTable
from controllers.simulation.asks import Asks
from controllers.simulation.booking_bus import BookingBus
from controllers.simulation.engine import Job
from controllers.simulation.engines import Engines
from controllers.simulation.event_log import EventLog
from controllers.simulation.own_router import CachelaneRouter
from controllers.simulation.peers import formula_of
from controllers.simulation.prompt_blocks import PrefixTable
from controllers.simulation.records import Records
from controllers.simulation.result import Run
from controllers.simulation.routers import PeerRouter, Router, Sent
from controllers.simulation.settings import FleetSettings
from controllers.simulation.trace import TRACE_BLOCK, Trace, arrivals_ms
from controllers.simulation.worker import Worker

OWN_ROUTER = "cachelane"
PROGRESS_EVERY = 100  # requests


class Kind(IntEnum):
    DOWN = 0
    UP = 1
    ARRIVAL = 2
    ITERATION = 3
    SNAPSHOT = 4
    LOAD = 5
    WAKE = 6
    GATHERED = 7


class Fleet:
    """One run. `router`: `cachelane` or what `peers.formula_of` takes. Raises SettingsError;
    InvalidRequest for a request type that `settings.retention` does not know."""

    def __init__(self, trace: Trace, settings: FleetSettings, router: str) -> None:
        settings.check()
        self._trace = trace
        self._settings = settings
        self._asks = Asks(trace, settings.retention)
        self._arrival_ms = arrivals_ms(trace, settings.speedup, settings.jitter, settings.seed)
        self._records = Records(trace, self._arrival_ms)
        self._rng = Random(settings.seed)
        table = RoutingTable(TRACE_BLOCK)
        self._table = PrefixTable(table, trace.block_size)
        self._engines = Engines(trace, settings, has_gate=router == OWN_ROUTER)
        self._workers = self._engines.workers
        self._bus = BookingBus(settings.booking_lag_s * 1e3, settings.shares_bookings)
        self._routers = [self._router(router, i) for i in range(settings.num_routers)]
        self._bus.listeners = [own.on_bookings for own in self._routers]
        self._log = EventLog(
            table,
            settings.event_lag_s * 1e3,
            settings.event_loss,
            self._rng,
            self._on_load,
            self._ask_for_snapshot,
        )
        self._now = 0.0
        self._wakes_ms = [math.inf] * len(self._routers)
        self._agenda: list[tuple[float, Kind, int, int]] = []
        self._num_noted = 0
        self._num_to_come_up = sum(math.isfinite(o.back_s) for o in settings.outages)

    def run(self, on_progress: Callable[[int], None] = lambda num_done: None) -> Run:
        """`on_progress(requests done)` is called now and then. Raises SettingsError if requests
        are left without any worker."""
        self._begin()
        handlers: Sequence[Callable[[int], None]] = (
            self._go_down,
            self._come_up,
            self._arrive,
            self._end_iteration,
            self._snapshot,
            self._tell_load,
            self._decide,
            self._wake_worker,
        )
        next_told = PROGRESS_EVERY
        while not self._records.is_complete:
            self._now, kind, _, argument = heapq.heappop(self._agenda)
            self._log.deliver(self._now)
            self._bus.deliver(self._now)
            handlers[kind](argument)
            if self._records.num_done >= next_told:
                on_progress(self._records.num_done)
                next_told = self._records.num_done + PROGRESS_EVERY
        return self._records.run(self._engines.sums(), self._log.num_lost, self._log.num_stale)

    def _router(self, name: str, index: int) -> Router:
        settings, per = self._settings, self._trace.blocks_per_trace_block
        if name == OWN_ROUTER:
            return CachelaneRouter(index, settings, self._table, self._rng, self._bus, per)
        predicts = settings.event_lag_s > 0 or settings.event_loss > 0
        return PeerRouter(formula_of(name), self._table, self._engines, self._rng, per, predicts)

    def _begin(self) -> None:
        settings = self._settings
        for index, worker in enumerate(self._workers):
            self._log.publish(worker.log.start(0.0), 0.0)
            if self._routers[0].needs_loads or settings.event_loss:
                step_ms = 1e3 * settings.load_interval_s / len(self._workers)
                self._note((index + 1) * step_ms, Kind.LOAD, index)
        self._set_workers()
        for outage in settings.outages:
            self._note(outage.at_s * 1e3, Kind.DOWN, outage.worker)
            if math.isfinite(outage.back_s):
                self._note(outage.back_s * 1e3, Kind.UP, outage.worker)
        self._note(float(self._arrival_ms[0]), Kind.ARRIVAL, 0)

    def _note(self, at: float, kind: Kind, argument: int) -> None:
        self._num_noted += 1
        heapq.heappush(self._agenda, (max(at, self._now), kind, self._num_noted, argument))

    def _set_workers(self) -> None:
        for router in self._routers:
            router.set_workers(self._engines.up())

    def _router_of(self, number: int) -> Router:
        return self._routers[number % len(self._routers)]

    def _arrive(self, number: int) -> None:
        """Requests of the same moment are looked at together."""
        arrivals = self._arrival_ms
        number = self._submit(number)
        while number < len(arrivals) and arrivals[number] <= self._now:
            number = self._submit(number)
        if number < len(arrivals):
            self._note(float(arrivals[number]), Kind.ARRIVAL, number)
        self._decide_all()

    def _submit(self, number: int) -> int:
        """Returns the number of the next one."""
        self._router_of(number).submit(self._trace.requests[number], self._now)
        return number + 1

    def _decide_all(self) -> None:
        for index in range(len(self._routers)):
            self._decide(index)

    def _decide(self, index: int, ended: int = -1) -> None:
        """Let a router decide. `ended`: a worker whose iteration has just ended, which goes on."""
        router, now = self._routers[index], self._now
        if not any(worker.is_up for worker in self._workers):
            if not self._num_to_come_up:
                raise SettingsError("every worker is gone for ever, with requests left")
            return
        reached = {self._send(sent) for sent in router.decide(now)}
        for at in sorted(reached - {ended}):
            self._wake_worker(at)
        wake_ms = router.wake_ms(now)
        if math.isfinite(wake_ms) and not now < self._wakes_ms[index] <= wake_ms:
            self._wakes_ms[index] = wake_ms
            self._note(wake_ms, Kind.WAKE, index)

    def _wake_worker(self, at: int) -> None:
        worker = self._workers[at]
        worker.wake(self._now)
        self._follow(worker, at)

    def _send(self, sent: Sent) -> int:
        """Returns the index of the worker."""
        request, is_piece = self._trace.requests[sent.number], sent.piece_tokens is not None
        if sent.piece_tokens is not None:
            request = request.piece(sent.piece_tokens, self._trace.block_size)
        at = self._engines.at[sent.worker]
        self._records.sent(sent.number, at)
        ask = self._asks.of(request)
        job = Job(sent.number, request.num_tokens, request.output_tokens, ask, is_piece)
        self._workers[at].submit(job, sent.uncached_tokens, self._now)
        return at

    def _end_iteration(self, at: int) -> None:
        worker, now = self._workers[at], self._now
        if worker.engine.end_ms != now:
            return  # the run was cut short, or the worker died
        ended = worker.finish(now)
        told = {self._first_token(job) for job in ended.first}
        told |= {self._done(job) for job in ended.done}
        for index in sorted(told):
            self._decide(index, ended=at)
        worker.go_on(now)
        self._follow(worker, at)

    def _first_token(self, job: Job) -> int:
        """Returns the index of its router."""
        self._records.first_token(job, self._now)
        self._router_of(job.index).first_token(self._trace.requests[job.index], self._now)
        return job.index % len(self._routers)

    def _done(self, job: Job) -> int:
        """Returns the index of its router."""
        request, router = self._trace.requests[job.index], self._router_of(job.index)
        if job.is_piece:
            router.release(request, self._now, 0)
            router.submit(request, self._now)
        else:
            self._records.done(job, self._now)
            router.release(request, self._now, request.output_tokens)
        return job.index % len(self._routers)

    def _follow(self, worker: Worker, at: int) -> None:
        """Note when its iteration ends, and tell what its cache did."""
        end_ms = worker.engine.end_ms
        if end_ms != worker.noted_ms and math.isfinite(end_ms):
            self._note(end_ms, Kind.ITERATION, at)
        worker.noted_ms = end_ms
        gathers_until = worker.gathers_until(self._now)
        if self._now < gathers_until < math.inf and gathers_until != worker.gathers_noted_ms:
            worker.gathers_noted_ms = gathers_until
            self._note(gathers_until, Kind.GATHERED, at)
        for record in worker.records(self._now):
            self._log.publish(record, self._now)

    def _tell_load(self, at: int) -> None:
        worker = self._workers[at]
        if not at:
            for router in self._routers:
                router.beat(self._now)
        if worker.is_up:
            self._log.publish(worker.log.batch([worker.load()], self._now), self._now)
        self._note(self._now + 1e3 * self._settings.load_interval_s, Kind.LOAD, at)

    def _on_load(self, worker: str, load: Load, now: float) -> None:
        for router in self._routers:
            router.on_load(worker, load, now)

    def _ask_for_snapshot(self, worker: str, at: float) -> None:
        self._note(at, Kind.SNAPSHOT, self._engines.at[worker])

    def _snapshot(self, at: int) -> None:
        worker = self._workers[at]
        if worker.is_up:
            self._log.publish(worker.log.snapshot(worker.engine.cache, self._now), self._now)

    def _go_down(self, at: int) -> None:
        worker = self._workers[at]
        if not worker.is_up:
            return
        lost = worker.end()
        self._log.publish(worker.log.end(self._now), self._now)
        self._set_workers()
        for job in lost:
            self._records.lost(job)
            self._router_of(job.index).release(self._trace.requests[job.index], self._now, 0)
            self._submit(job.index)
        self._decide_all()

    def _come_up(self, at: int) -> None:
        worker = self._workers[at]
        self._num_to_come_up -= 1
        if worker.is_up:
            return
        worker.begin_again()
        self._log.publish(worker.log.start(self._now), self._now)
        self._set_workers()
        self._decide_all()
