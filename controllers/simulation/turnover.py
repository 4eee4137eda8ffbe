"""Workers of a simulated fleet that come and go: outages, and what autoscaling says.

Owns their states and what the log hears of them. Requests of a worker that dies, and routers, are
the fleet's: it is told of every change. Times are in ms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from controllers.simulation.agenda import Agenda, Kind
from controllers.simulation.engine import Job
from controllers.simulation.engines import Engines
from controllers.simulation.event_log import EventLog
from controllers.simulation.scaler import Scaler
from controllers.simulation.settings import FleetSettings
from controllers.simulation.worker import State
from controllers.simulation.worker_hours import Span

# Load records of a fleet that has nothing to do say the same again and again. Before something
# happens they are told for so long as if they had been told all the time.
QUIET_MS = 60_000.0

OnChange: TypeAlias = Callable[[Sequence[Job]], None]


class Turnover:
    """`reads_loads`: somebody wants load records. `on_change(lost)`: others take requests now, and
    these were lost with a worker."""

    def __init__(
        self,
        settings: FleetSettings,
        engines: Engines,
        agenda: Agenda,
        log: EventLog,
        reads_loads: bool,
        on_change: OnChange,
    ) -> None:
        self._settings = settings
        self._engines = engines
        self._agenda = agenda
        self._log = log
        self._reads_loads = reads_loads or settings.autoscaling is not None
        self._on_change = on_change
        self._load_ms = 1e3 * settings.load_interval_s
        self._num_to_come_up = sum(math.isfinite(outage.back_s) for outage in settings.outages)
        self.scaler = None if settings.autoscaling is None else Scaler(settings.autoscaling)

    @property
    def is_over(self) -> bool:
        """Nobody comes any more."""
        return not self._num_to_come_up and self.scaler is None

    def spans(self) -> list[Span]:
        """By worker."""
        return [worker.span for worker in self._engines.workers]

    def begin(self) -> None:
        """The first workers are up; nobody is told."""
        num_workers = self._settings.num_workers
        if self.scaler is not None:
            num_workers = self.scaler.target
            self._agenda.note(self.scaler.interval_ms, Kind.SCALE)
        for index in range(num_workers):
            self._begin_worker(self._engines.add(0.0))
            self._beat((index + 1) * (self._load_ms / num_workers), index)
        for outage in self._settings.outages:
            self._agenda.note(outage.at_s * 1e3, Kind.DOWN, outage.worker)
            if math.isfinite(outage.back_s):
                self._agenda.note(outage.back_s * 1e3, Kind.UP, outage.worker)

    def go_down(self, at: int) -> None:
        """It dies, or has not ended in time what it had to finish. Who is not there does not."""
        if at >= len(self._engines.workers):
            return
        worker = self._engines.workers[at]
        if worker.state is State.STARTING:
            worker.leave(self._agenda.now)
        if not worker.is_running:
            return
        lost = worker.end()
        self._log.publish(worker.log.end("simulated outage", self._agenda.now), self._agenda.now)
        if self.scaler is not None:
            worker.leave(self._agenda.now)  # another one comes in its place
        self._on_change(lost)

    def come_up(self, at: int) -> None:
        """It is back."""
        self._num_to_come_up -= 1
        if self._engines.workers[at].state is State.DOWN:
            self._begin_worker(at)
            self._on_change(())

    def start(self, at: int) -> None:
        """It has started, unless it was called off."""
        if self._engines.workers[at].state is State.STARTING:
            self._begin_worker(at)
            self._beat(self._agenda.now + self._load_ms, at)
            self._on_change(())

    def scale(self, num_in_routers: int) -> None:
        """Workers start or drain, as the policy has it now. `num_in_routers` requests wait."""
        assert self.scaler is not None
        now, engines = self._agenda.now, self._engines
        change = self.scaler.decide(engines.present(now), num_in_routers, now)
        for _ in range(change.num_to_start):
            self._agenda.note(now + 1e3 * self._settings.start_s, Kind.STARTED, engines.add(now))
        for name in change.cancelled:
            engines.workers[engines.at[name]].leave(now)
        for name in change.drained:
            self._drain(engines.at[name], self.scaler.drain_timeout_ms)
        self._agenda.note(now + self.scaler.interval_ms, Kind.SCALE)

    def tell_load(self, at: int, is_idle: bool = False) -> None:
        """And again, while there is hope for it; the first one's beat is the routers', too. One
        that has drained by now is gone. `is_idle`: no request is under way or waits."""
        worker, now = self._engines.workers[at], self._agenda.now
        if worker.is_drained:
            self._log.publish(worker.log.end("simulated scale-down", now), now)
            worker.leave(now)
        elif worker.is_running:
            self._log.publish(worker.log.batch([worker.load(now)], now), now)
        if worker.state is not State.GONE or not at:
            next_ms = now + self._load_ms
            self._beat(self._after_quiet(next_ms) if is_idle else next_ms, at)

    def _after_quiet(self, next_ms: float) -> float:
        """In a long time in which nothing happens, a later beat."""
        quiet_ms = self._agenda.next_but(Kind.LOAD) - QUIET_MS - next_ms
        if not QUIET_MS < quiet_ms < math.inf:
            return next_ms
        return next_ms + self._load_ms * math.ceil(quiet_ms / self._load_ms)

    def _begin_worker(self, at: int) -> None:
        worker = self._engines.begin(at, self._agenda.now)
        self._log.publish(worker.log.start(self._agenda.now), self._agenda.now)

    def _beat(self, at_ms: float, at: int) -> None:
        if self._reads_loads:
            self._agenda.note(at_ms, Kind.LOAD, at)

    def _drain(self, at: int, timeout_ms: float) -> None:
        self._engines.workers[at].drain()
        self._agenda.note(self._agenda.now + timeout_ms, Kind.DOWN, at)
        self._on_change(())
