"""The workers of a simulated fleet at work: what is sent to them, and when something ends there.

Owns what the agenda and the log hear of engines and gates. Who works says `turnover`, where
requests go the routers, what becomes of them the fleet. Times are in ms.
"""

from __future__ import annotations

import math

from controllers.simulation.agenda import Agenda, Kind
from controllers.simulation.engine import Job
from controllers.simulation.engines import Engines
from controllers.simulation.event_log import EventLog
from controllers.simulation.result import Floats
from controllers.simulation.routers import Sent
from controllers.simulation.standing import Standings
from controllers.simulation.trace import Request
from controllers.simulation.worker import Worker
from controllers.waiting import Waiting


class Crew:
    """`turned_away`: jobs that a gate did not take or keep, with the worker's name, until somebody
    takes them away."""

    def __init__(
        self,
        engines: Engines,
        agenda: Agenda,
        log: EventLog,
        standings: Standings,
        arrival_ms: Floats,
        hand_back_ms: float,
    ) -> None:
        self.turned_away: list[tuple[str, Job]] = []
        self._engines = engines
        self._agenda = agenda
        self._log = log
        self._standings = standings
        self._arrival_ms = arrival_ms
        self._hand_back_ms = hand_back_ms
        self._since_ms = arrival_ms.copy()  # of requests: came, or lost their last worker

    def send(self, request: Request, job: Job, at: int, sent: Sent, has_started: bool) -> None:
        """To worker `at`, which must be woken. `has_started`: its first token came, from a worker
        that died."""
        worker, now = self._engines.workers[at], self._agenda.now
        standing = self._standings.of(request)
        if worker.stats is not None:
            waited_s = (now - float(self._since_ms[job.index])) / 1e3
            worker.stats.arrived(job, standing.target, sent.uncached_tokens, now, waited_s)
        deadline_ms = math.inf
        if standing.max_ttft_ms is not None and not has_started:
            deadline_ms = float(self._arrival_ms[job.index]) + standing.max_ttft_ms
            self._agenda.note(deadline_ms, Kind.GATE, at)
        item = Waiting(
            request_id=str(job.index),
            uncached_tokens=sent.uncached_tokens,
            submitted_s=now / 1000.0,
            rank=standing.rank,
            tenant=standing.tenant,
            weight=standing.weight,
            deadline_s=deadline_ms / 1000.0,
            max_ahead_tokens=sent.max_ahead_tokens,
        )
        worker.submit(job, item, now)

    def lost(self, job: Job) -> None:
        """Its worker died."""
        self._since_ms[job.index] = self._agenda.now

    def abort(self, number: int, at: int) -> None:
        """Nobody wants the request any more, if worker `at` has it."""
        worker = self._engines.workers[at]
        job = worker.here.get(number)
        if job is not None:
            worker.abort(job, self._agenda.now)
            self.wake(at)

    def wake(self, at: int) -> None:
        """Between two ends of iterations."""
        worker = self._engines.workers[at]
        worker.wake(self._agenda.now)
        self.follow(worker, at)

    def follow(self, worker: Worker, at: int) -> None:
        """Note when its iteration ends, and tell what its cache did."""
        now, end_ms = self._agenda.now, worker.engine.end_ms
        if end_ms != worker.noted_ms and math.isfinite(end_ms):
            self._agenda.note(end_ms, Kind.ITERATION, at)
        worker.noted_ms = end_ms
        gathers_until = worker.gathers_until(now)
        if now < gathers_until < math.inf and gathers_until != worker.gathers_noted_ms:
            worker.gathers_noted_ms = gathers_until
            self._agenda.note(gathers_until, Kind.GATE, at)
        for job in worker.handed_back:
            self._agenda.note(now + self._hand_back_ms, Kind.HANDED_BACK, job.index)
        worker.handed_back.clear()
        if worker.turned_away:
            self.turned_away += [(worker.name, job) for job in worker.turned_away]
            worker.turned_away = []
        for record in worker.records(now):
            self._log.publish(record, now)

    def snapshot(self, at: int) -> None:
        worker, now = self._engines.workers[at], self._agenda.now
        if worker.is_running:
            self._log.publish(worker.log.snapshot(worker.engine.cache, now), now)
