"""The event loop of a simulated fleet: arrivals, iterations, the log, workers that come and go.

Owns what becomes of each request. Decisions are the routers', what engines do is the workers'.
Times are in ms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random

from controllers.errors import SettingsError
from controllers.routing_table import RoutingTable
from controllers.simulation.agenda import Agenda, Kind
from controllers.simulation.asks import Asks
from controllers.simulation.crew import Crew
from controllers.simulation.engine import Job
from controllers.simulation.engines import Engines
from controllers.simulation.event_log import EventLog
from controllers.simulation.ingresses import OWN_ROUTER, Ingresses
from controllers.simulation.prompt_blocks import PrefixTable
from controllers.simulation.records import Records
from controllers.simulation.result import Run
from controllers.simulation.routers import Sent
from controllers.simulation.settings import FleetSettings
from controllers.simulation.standing import Standings
from controllers.simulation.trace import TRACE_BLOCK, Trace, arrivals_ms
from controllers.simulation.turnover import Turnover

PROGRESS_EVERY = 100  # requests


class Fleet:
    """One run. `router`: `cachelane` or what `peers.formula_of` takes. Raises SettingsError;
    InvalidRequest for a request type that `settings.retention` does not know."""

    def __init__(self, trace: Trace, settings: FleetSettings, router: str) -> None:
        settings.check()
        self._trace = trace
        self._asks = Asks(trace, settings.retention)
        self._arrival_ms = arrivals_ms(trace, settings.speedup, settings.jitter, settings.seed)
        standings = Standings(trace.requests, settings.tiers, settings.tenants)
        self._records = Records(trace, self._arrival_ms, standings)
        rng = Random(settings.seed)
        table = RoutingTable(TRACE_BLOCK)
        self._engines = Engines(trace, settings, has_gate=router == OWN_ROUTER)
        self._workers = self._engines.workers
        self._ingresses = Ingresses(
            router,
            trace,
            settings,
            self._arrival_ms,
            standings,
            PrefixTable(table, trace.block_size),
            self._engines,
            self._records.has_started,
            rng,
        )
        self._log = EventLog(
            table,
            settings.event_lag_s * 1e3,
            settings.event_loss,
            rng,
            self._ingresses.on_load,
            self._ingresses.on_removed if self._ingresses.reads_removals else None,
            self._ask_for_snapshot,
        )
        self._now = 0.0
        self._num_arrived = 0
        self._has_workers = False
        self._wakes_ms = [math.inf] * settings.num_routers
        self._agenda = Agenda()
        self._crew = Crew(
            self._engines,
            self._agenda,
            self._log,
            standings,
            self._arrival_ms,
            settings.hand_back_s * 1e3,
        )
        self._turnover = Turnover(
            settings,
            self._engines,
            self._agenda,
            self._log,
            self._ingresses.reads_loads or bool(settings.event_loss),
            self._on_workers,
        )

    def run(self, on_progress: Callable[[int], None] = lambda num_done: None) -> Run:
        """`on_progress(requests done)` is called now and then. Raises SettingsError if requests
        are left without any worker."""
        self._turnover.begin()
        self._set_workers()
        self._agenda.note(float(self._arrival_ms[0]), Kind.ARRIVAL)
        handlers: Sequence[Callable[[int], None]] = (
            self._turnover.go_down,
            self._turnover.come_up,
            self._arrive,
            self._end_iteration,
            self._crew.snapshot,
            self._tell_load,
            self._decide,
            self._crew.wake,
            self._turnover.start,
            self._scale,
            self._handed_back,
        )
        next_told = PROGRESS_EVERY
        records, num_requests = self._records, len(self._trace.requests)
        while records.num_ended < num_requests:
            kind, number = self._agenda.take()
            self._now = self._agenda.now
            self._log.deliver(self._now)
            self._ingresses.deliver(self._now)
            handlers[kind](number)
            while self._crew.turned_away:
                self._ask_others()
            if records.num_ended >= next_told:
                on_progress(records.num_ended)
                next_told = records.num_ended + PROGRESS_EVERY
        run = records.run(self._engines.sums(), self._log.num_lost, self._log.num_stale)
        if self._turnover.scaler is None:
            return run
        return self._turnover.scaler.told(
            run, self._turnover.spans(), self._records.share_in_time()
        )

    def _set_workers(self) -> None:
        worker_to_blocks = self._engines.up()
        self._has_workers = bool(worker_to_blocks)
        self._ingresses.set_workers(worker_to_blocks, self._now)

    def _arrive(self, number: int) -> None:
        """Requests of the same moment are looked at together."""
        arrivals = self._arrival_ms
        number = self._enter(number)
        while number < len(arrivals) and arrivals[number] <= self._now:
            number = self._enter(number)
        if number < len(arrivals):
            self._agenda.note(float(arrivals[number]), Kind.ARRIVAL, number)
        self._decide_all()

    def _enter(self, number: int) -> int:
        """Returns the number of the next one."""
        self._num_arrived += 1
        for refused in self._ingresses.enter(self._trace.requests[number], self._now):
            self._refuse(refused)
        return number + 1

    def _refuse(self, number: int) -> None:
        """It is not answered, wherever it is now."""
        num_cached = None
        if self._records.has_started(number):
            num_cached = self._records.num_cached(number)
        self._records.refused(number)
        self._ingresses.ended(self._trace.requests[number], num_cached, 0, self._now)
        if self._records.worker_of(number) >= 0:
            self._crew.abort(number, self._records.worker_of(number))

    def _handed_back(self, number: int) -> None:
        """By its worker's gate; the router has it again now."""
        if not self._records.has_ended(number):
            self._ingresses.handed_back(self._trace.requests[number], self._now)
            self._decide(self._ingresses.index_of(number))

    def _ask_others(self) -> None:
        """Gates did not take or keep some requests; other workers may."""
        turned_away, self._crew.turned_away = self._crew.turned_away, []
        left = [(w, job) for w, job in turned_away if not self._records.has_ended(job.index)]
        for worker, job in left:
            self._ingresses.turned_away(self._trace.requests[job.index], worker, self._now)
        for index in sorted({self._ingresses.index_of(job.index) for _, job in left}):
            self._decide(index)

    def _decide_all(self) -> None:
        for index in range(len(self._wakes_ms)):
            self._decide(index)

    def _decide(self, index: int, ended: int = -1) -> None:
        """Let a router decide. `ended`: a worker whose iteration has just ended, which goes on."""
        now = self._now
        if not self._has_workers:
            if self._turnover.is_over:
                raise SettingsError("every worker is gone for ever, with requests left")
            return
        if not self._ingresses.is_waiting(index):
            return
        reached: set[int] = set()
        for decision in self._ingresses.decide(index, now):
            if isinstance(decision, Sent):
                reached.add(self._send(decision))
            else:
                self._refuse(decision.number)
        for at in sorted(reached - {ended}):
            self._crew.wake(at)
        wake_ms = self._ingresses.wake_ms(index, now)
        if math.isfinite(wake_ms) and not now < self._wakes_ms[index] <= wake_ms:
            self._wakes_ms[index] = wake_ms
            self._agenda.note(wake_ms, Kind.WAKE, index)

    def _send(self, sent: Sent) -> int:
        """Returns the index of the worker."""
        request, is_piece = self._trace.requests[sent.number], sent.piece_tokens is not None
        planned = self._ingresses.retention(request, sent.worker, self._now)
        if sent.piece_tokens is not None:
            request = request.piece(sent.piece_tokens, self._trace.block_size)
        at = self._engines.at[sent.worker]
        self._records.sent(sent.number, at)
        ask = self._asks.of(request, planned)
        job = Job(sent.number, request.num_tokens, request.output_tokens, ask, is_piece)
        has_started = self._records.has_started(sent.number)
        self._crew.send(request, job, at, sent, has_started)
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
        self._crew.follow(worker, at)

    def _first_token(self, job: Job) -> int:
        """Returns the index of its router."""
        request, now = self._trace.requests[job.index], self._now
        self._records.first_token(job, now)
        self._ingresses.first_token(request, now)
        if not job.is_piece:
            self._ingresses.started(request, self._records.num_cached(job.index), now)
        return self._ingresses.index_of(job.index)

    def _done(self, job: Job) -> int:
        """Returns the index of its router."""
        request, now = self._trace.requests[job.index], self._now
        if job.is_piece:
            self._ingresses.piece_ended(request, job.num_tokens, now)
        else:
            self._records.done(job, now)
            num_cached = self._records.num_cached(job.index)
            self._ingresses.ended(request, num_cached, request.output_tokens, now)
        return self._ingresses.index_of(job.index)

    def _tell_load(self, at: int) -> None:
        if not at:
            self._ingresses.beat(self._now)
        self._turnover.tell_load(at, is_idle=self._records.num_ended == self._num_arrived)

    def _ask_for_snapshot(self, worker: str, at: float) -> None:
        self._agenda.note(at, Kind.SNAPSHOT, self._engines.at[worker])

    def _scale(self, _: int) -> None:
        self._turnover.scale(self._ingresses.num_waiting)

    def _on_workers(self, lost: Sequence[Job]) -> None:
        """Other workers take requests now; these were lost and run again."""
        self._set_workers()
        for job in lost:
            self._records.lost(job)
            self._crew.lost(job)
            self._ingresses.lost(self._trace.requests[job.index], self._now)
        self._decide_all()
