"""One simulated worker: engine, gate and log, as a replica puts them together. Times are in ms."""

from __future__ import annotations

import math
from typing import NamedTuple

from controllers.events import Event, EventBatch, Load
from controllers.fair_queue import Bounds
from controllers.gate import SHARED_START_SHARE, Gate, GateRules
from controllers.simulation.engine import Ended, Engine, EngineShape, Job
from controllers.simulation.worker_log import WorkerLog
from controllers.waiting import Waiting

MANY = 1 << 30


class Sums(NamedTuple):
    """What a worker did so far."""

    prefill_ms: float
    num_hit_blocks: int
    num_missed_blocks: int
    num_asked_blocks: int


class Worker:
    """`here`: requests that it has, by index. `is_up`: it takes requests."""

    def __init__(self, name: str, shape: EngineShape, has_gate: bool) -> None:
        self.name = name
        self.is_up = True
        self.noted_ms = math.inf  # end of an iteration that the fleet has noted
        self.gathers_noted_ms = math.inf
        self.log = WorkerLog(name, shape.cache)
        self.here: dict[int, Job] = {}
        self._before = Sums(0.0, 0, 0, 0)  # of engines before the present one
        self.shape = shape
        self._has_gate = has_gate
        self._begin()

    def _begin(self) -> None:
        self.engine = Engine(self.shape)
        shape = self.shape
        rules = GateRules(
            bounds=Bounds(MANY),
            shared_start_tokens=int(SHARED_START_SHARE * shape.max_batched_tokens),
            max_running=shape.max_sequences,
            quantum_tokens=shape.max_batched_tokens,
            gather_s=shape.gather_s,
        )
        self._gate = Gate(rules) if self._has_gate else None

    def submit(self, job: Job, uncached_tokens: int, now: float) -> None:
        """A router sends a request, of which it expects so much to be computed. `wake` or `go_on`
        must follow."""
        self.here[job.index] = job
        job.tokens_left = uncached_tokens  # until admission knows better
        if self._gate is None:
            self.engine.waiting.append(job)
        else:
            self._gate.submit(Waiting(str(job.index), uncached_tokens, now / 1000.0))

    def wake(self, now: float) -> None:
        """After `submit`, or at `gathers_until`, between two ends of iterations."""
        self._start_next(now)
        if self.engine.waiting:
            self.engine.wake(now)

    def gathers_until(self, now: float) -> float:
        """When to `wake` it in any case; inf: when something happens."""
        until_s = None if self._gate is None else self._gate.gathers_until(now / 1000.0)
        return math.inf if until_s is None else 1000.0 * until_s

    def finish(self, now: float) -> Ended:
        """The running iteration ends. `go_on` must follow."""
        ended = self.engine.finish()
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
        return [self.log.batch(events, now)] if events else []

    def load(self) -> Load:
        engine, gate, shape = self.engine, self._gate, self.shape.cache
        queued = engine.prefill_tokens_left + sum(job.tokens_left for job in engine.waiting)
        num_waiting = 0 if gate is None else gate.num_waiting
        return Load(
            num_active=engine.num_running,
            num_queued=len(engine.waiting) + num_waiting,
            queued_prefill_tokens=queued + (0 if gate is None else gate.waiting_tokens),
            decode_tokens=engine.num_decode_tokens,
            used_blocks={"gpu": min(engine.cache.num_used_blocks, shape.num_gpu_blocks)},
            total_blocks={"gpu": shape.num_gpu_blocks},
            cached_blocks=engine.cache.num_cached_blocks,
            iterations=engine.take_iterations(),
        )

    def end(self) -> list[Job]:
        """It dies; returns the requests that it had."""
        self._before = self.sums()
        lost, self.here = list(self.here.values()), {}
        self.is_up = False
        self._begin()
        return lost

    def begin_again(self) -> None:
        """With an empty cache."""
        self.is_up = True

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
            for item in self._gate.start(now / 1000.0):
                self.engine.waiting.append(self.here[int(item.request_id)])
