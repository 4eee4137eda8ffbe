"""One simulated worker: engine, gate and log, as a replica puts them together. Times are in ms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from controllers.errors import WorkerFull
from controllers.events import Event, EventBatch, Load
from controllers.gate import SHARED_START_SHARE, Gate, GateRules
from controllers.simulation.engine import Ended, Engine, EngineShape, Job
from controllers.simulation.worker_hours import Span
from controllers.simulation.worker_log import WorkerLog
from controllers.simulation.worker_stats import WorkerStats
from controllers.waiting import Waiting

# Of a time that is in seconds elsewhere: it must not come a moment before it is due.
ROUNDING_MS = 1e-6


class State(Enum):
    """DRAINING: finishes what it has, and takes nothing new. DOWN: dead. GONE: for ever."""

    STARTING = auto()
    UP = auto()
    DRAINING = auto()
    DOWN = auto()
    GONE = auto()


class Sums(NamedTuple):
    """What a worker did so far."""

    prefill_ms: float
    num_hit_blocks: int
    num_missed_blocks: int
    num_asked_blocks: int


class Worker:
    """`here`: requests that it has, by index. `stats`: what it measures for autoscaling, if
    anybody asks. `since`: when it was asked for. `turned_away`: those that its gate did not take or
    keep, and `handed_back`, until somebody takes them away."""

    def __init__(self, name: str, shape: EngineShape, has_gate: bool, since: float = 0.0) -> None:
        self.name = name
        self.state = State.STARTING
        self.span = Span(since, math.inf)
        self.stats: WorkerStats | None = None
        self.noted_ms = math.inf  # end of an iteration that the fleet has noted
        self.gathers_noted_ms = math.inf
        self.log = WorkerLog(name, shape.cache)
        self.here: dict[int, Job] = {}
        self.turned_away: list[Job] = []
        self.handed_back: list[Job] = []
        self._before = Sums(0.0, 0, 0, 0)  # of engines before the present one
        self.shape = shape
        self._has_gate = has_gate
        self._begin()

    def _begin(self) -> None:
        self.engine = Engine(self.shape)
        shape = self.shape
        rules = GateRules(
            bounds=shape.gate_bounds,
            shared_start_tokens=int(SHARED_START_SHARE * shape.max_batched_tokens),
            max_running=shape.max_sequences,
            quantum_tokens=shape.max_batched_tokens,
            max_kept_share=shape.max_kept_share,
            gather_s=shape.gather_s,
        )
        self._gate = Gate(rules) if self._has_gate else None

    @property
    def is_up(self) -> bool:
        """It takes requests."""
        return self.state is State.UP

    @property
    def is_running(self) -> bool:
        """Its engine runs, and it writes to the log."""
        return self.state is State.UP or self.state is State.DRAINING

    @property
    def is_drained(self) -> bool:
        return self.state is State.DRAINING and not self.here

    @property
    def num_at_gate(self) -> int:
        return 0 if self._gate is None else self._gate.num_waiting

    def submit(self, job: Job, item: Waiting, now: float) -> None:
        """A router sends a request, as its gate sees it. `wake` or `go_on` must follow."""
        self.here[job.index] = job
        job.tokens_left = item.uncached_tokens  # until admission knows better
        if self._gate is None:
            self.engine.waiting.append(job)
        else:
            try:
                self._turn_away(self._gate.submit(item), now)
            except WorkerFull:
                self._turn_away([item], now)

    def abort(self, job: Job, now: float) -> None:
        """It has no first token yet, and nobody wants it any more. `wake` must follow."""
        del self.here[job.index]
        if self._gate is not None:
            self._gate.leave(str(job.index), now / 1000.0)
        self.engine.abort(job)
        if self.stats is not None:
            self.stats.left(job, now)

    def wake(self, now: float) -> None:
        """After `submit`, or at `gathers_until`, between two ends of iterations."""
        self._start_next(now)
        if self.engine.waiting:
            self.engine.wake(now)

    def gathers_until(self, now: float) -> float:
        """When to `wake` it in any case; inf: when something happens."""
        until_s = None if self._gate is None else self._gate.gathers_until(now / 1000.0)
        return math.inf if until_s is None else 1000.0 * until_s + ROUNDING_MS

    def finish(self, now: float) -> Ended:
        """The running iteration ends. `go_on` must follow."""
        ended = self.engine.finish()
        if self.stats is not None:
            self.stats.ended(ended, now)
        if self._gate is not None:
            for job in ended.first:
                self._gate.prefill_ended(str(job.index))
            for job in ended.done:
                self._gate.leave(str(job.index), now / 1000.0)
        for job in ended.done:
            del self.here[job.index]
        return ended

    def go_on(self, now: float) -> None:
        """Begin the next iteration after `finish`."""
        self._start_next(now)
        self.engine.plan(now)

    def records(self, now: float) -> list[EventBatch]:
        """What its cache did since the last call."""
        events: list[Event] = self.engine.cache.drain()
        if events and self.stats is not None:
            self.stats.on_events(events, now)
        return [self.log.batch(events, now)] if events else []

    def load(self, now: float) -> Load:
        load = self._load()
        if self.stats is not None:
            self.stats.on_load(load, self.num_at_gate, now)
        return load

    def _load(self) -> Load:
        engine, gate, shape = self.engine, self._gate, self.shape.cache
        queued = engine.prefill_tokens_left + sum(job.tokens_left for job in engine.waiting)
        return Load(
            num_active=engine.num_running,
            num_queued=len(engine.waiting) + self.num_at_gate,
            queued_prefill_tokens=queued + (0 if gate is None else gate.waiting_tokens),
            decode_tokens=engine.num_decode_tokens,
            used_blocks={"gpu": min(engine.cache.num_used_blocks, shape.num_gpu_blocks)},
            total_blocks={"gpu": shape.num_gpu_blocks},
            cached_blocks=engine.cache.num_cached_blocks,
            hit_tokens=engine.cache.num_hit_blocks * self.shape.block_size,
            prompt_tokens=engine.cache.num_asked_blocks * self.shape.block_size,
            queued_by_rank={} if gate is None else gate.waiting_by_rank(),
            iterations=engine.take_iterations(),
        )

    def end(self) -> list[Job]:
        """It dies; returns the requests that it had."""
        self._before = self.sums()
        lost, self.here = list(self.here.values()), {}
        self.state = State.DOWN
        self._begin()
        return lost

    def begin(self, stats: WorkerStats | None = None) -> None:
        """It is up, with an empty cache."""
        self.state, self.stats = State.UP, stats

    def drain(self) -> None:
        self.state = State.DRAINING

    def leave(self, now: float) -> None:
        """It has nothing to do any more, and does not come back."""
        self.end()
        self.state, self.stats = State.GONE, None
        self.span = self.span._replace(until=now)

    def sums(self) -> Sums:
        """Of all its engines."""
        cache, before = self.engine.cache, self._before
        return Sums(
            before.prefill_ms + self.engine.prefill_ms,
            before.num_hit_blocks + cache.num_hit_blocks,
            before.num_missed_blocks + cache.num_missed_blocks,
            before.num_asked_blocks + cache.num_asked_blocks,
        )

    def _start_next(self, now: float) -> None:
        if self._gate is not None and self._gate.num_waiting:
            self._turn_away(self._gate.expire(now / 1000.0), now)
            for item in self._gate.start(now / 1000.0):
                self.engine.waiting.append(self.here[int(item.request_id)])
            self._hand_back(self._gate.hand_back(now / 1000.0), now)

    def _turn_away(self, items: Sequence[Waiting], now: float) -> None:
        for item in items:
            job = self.here.pop(int(item.request_id))
            self.turned_away.append(job)
            if self.stats is not None:
                self.stats.left(job, now)

    def _hand_back(self, items: Sequence[Waiting], now: float) -> None:
        for item in items:
            job = self.here.pop(int(item.request_id))
            self.handed_back.append(job)
            if self.stats is not None:
                self.stats.handed_back(job, now)
