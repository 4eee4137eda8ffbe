"""What became of every request of a run, and the figures of the whole. Times are in ms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from controllers.simulation.engine import Job
from controllers.simulation.result import Floats, Report, Run, spread
from controllers.simulation.trace import Trace
from controllers.simulation.worker import Sums


class Records:
    """By request number. A request that runs again keeps its first token."""

    def __init__(self, trace: Trace, arrival_ms: Floats) -> None:
        num = len(trace.requests)
        self.num_done = 0
        self.num_rerun = 0
        self._trace = trace
        self._arrival_ms = arrival_ms
        self._first_ms = np.full(num, math.nan)
        self._end_ms = np.full(num, math.nan)
        self._computed = np.zeros(num, np.int64)
        self._in_pieces = np.zeros(
            num, np.int64
        )  # computed of what runs now, before its last piece
        self._cached = np.zeros(num, np.int64)
        self._worker = np.full(num, -1, np.int64)

    @property
    def is_complete(self) -> bool:
        return self.num_done == len(self._end_ms)

    def sent(self, number: int, worker: int) -> None:
        self._worker[number] = worker

    def first_token(self, job: Job, now: float) -> None:
        computed = self._add_computed(job)
        if job.is_piece:
            self._in_pieces[job.index] += computed
        elif math.isnan(self._first_ms[job.index]):
            self._first_ms[job.index] = now
            self._cached[job.index] = job.num_tokens - computed - self._in_pieces[job.index]

    def done(self, job: Job, now: float) -> None:
        self._end_ms[job.index] = now
        self.num_done += 1

    def lost(self, job: Job) -> None:
        """Its worker died; a prompt that was begun there counts as computed."""
        self.num_rerun += 1
        self._in_pieces[job.index] = 0
        if math.isnan(self._first_ms[job.index]):
            self._add_computed(job)

    def run(self, sums: Sequence[Sums], num_lost_records: int, num_stale: int) -> Run:
        """`sums` by worker."""
        prefill_ms = [own.prefill_ms for own in sums]
        requests = self._trace.requests
        num_tokens = sum(request.num_tokens for request in requests)
        report = Report(
            num_requests=len(requests),
            duration_s=float(self._end_ms.max()) / 1e3,
            ttft_ms=spread(self._first_ms - self._arrival_ms),
            e2e_ms=spread(self._end_ms - self._arrival_ms),
            reuse=1.0 - int(self._computed.sum()) / num_tokens,
            busiest_over_mean=max(prefill_ms) * len(sums) / max(sum(prefill_ms), 1e-9),
            num_asked_blocks=sum(own.num_asked_blocks for own in sums),
            num_hit_blocks=sum(own.num_hit_blocks for own in sums),
            num_missed_blocks=sum(own.num_missed_blocks for own in sums),
            num_rerun=self.num_rerun,
            num_lost_records=num_lost_records,
            num_stale=num_stale,
        )
        return Run(
            report,
            self._arrival_ms,
            self._first_ms,
            self._end_ms,
            self._cached,
            self._worker,
            prefill_ms,
        )

    def _add_computed(self, job: Job) -> int:
        """Tokens that this run of it computes; 0 if its engine has not begun."""
        if job.held is None:
            return 0
        num_cached = job.held.num_hit_blocks * self._trace.block_size
        computed = job.num_tokens - num_cached
        self._computed[job.index] += computed
        return computed
