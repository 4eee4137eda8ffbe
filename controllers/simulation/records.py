"""What became of every request of a run, and the figures of the whole. Times are in ms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from controllers.simulation.engine import Job
from controllers.simulation.result import Floats, PartReport, Report, Run, spread
from controllers.simulation.standing import Standings
from controllers.simulation.trace import Trace
from controllers.simulation.worker import Sums


class Records:
    """By request number. A request that runs again keeps its first token."""

    def __init__(self, trace: Trace, arrival_ms: Floats, standings: Standings) -> None:
        num = len(trace.requests)
        self.num_ended = 0  # answered or refused
        self.num_refused = 0
        self.num_rerun = 0
        self.num_pieces = 0
        self._trace = trace
        self._standings = standings
        self._arrival_ms = arrival_ms
        self._first_ms = np.full(num, math.nan)
        self._end_ms = np.full(num, math.nan)
        self._is_refused = np.zeros(num, np.bool_)
        self._computed = np.zeros(num, np.int64)
        self._asked = np.zeros(num, np.int64)  # tokens, by this run of it so far
        self._asked_in_vain = np.zeros(num, np.int64)  # by runs that were lost
        self._cached = np.full(num, -1, np.int64)  # -1: not known yet
        self._worker = np.full(num, -1, np.int64)

    def has_started(self, number: int) -> bool:
        """Its first token came."""
        return not math.isnan(self._first_ms[number])

    def has_ended(self, number: int) -> bool:
        return bool(self._is_refused[number]) or not math.isnan(self._end_ms[number])

    def num_cached(self, number: int) -> int:
        """Prompt tokens that it, or its first piece, found."""
        return max(0, int(self._cached[number]))

    def worker_of(self, number: int) -> int:
        """Index of the last one that it was sent to; -1: none."""
        return int(self._worker[number])

    def sent(self, number: int, worker: int) -> None:
        self._worker[number] = worker

    def first_token(self, job: Job, now: float) -> None:
        computed = self._add_computed(job)
        self._asked[job.index] = job.num_tokens
        if self._cached[job.index] < 0:
            self._cached[job.index] = job.num_tokens - computed
        if job.is_piece:
            self.num_pieces += 1
        elif math.isnan(self._first_ms[job.index]):
            self._first_ms[job.index] = now

    def done(self, job: Job, now: float) -> None:
        self._end_ms[job.index] = now
        self.num_ended += 1

    def refused(self, number: int) -> None:
        self._is_refused[number] = True
        self.num_refused += 1
        self.num_ended += 1

    def lost(self, job: Job) -> None:
        """Its worker died; a prompt that was begun there counts as asked for and computed."""
        self.num_rerun += 1
        asked = self._asked[job.index] if job.held is None else job.num_tokens
        self._asked_in_vain[job.index] += asked
        self._asked[job.index] = 0
        if job.tokens_left:
            self._add_computed(job)

    def share_in_time(self) -> float:
        """Of all requests, those with a first token within their tier's `ttft_slo_ms`."""
        slos_ms = [self._standings.of(r).target.ttft_slo_ms for r in self._trace.requests]
        return float((self._first_ms - self._arrival_ms <= slos_ms).mean())

    def run(self, sums: Sequence[Sums], num_lost_records: int, num_stale: int) -> Run:
        """`sums` by worker."""
        prefill_ms = [own.prefill_ms for own in sums]
        requests, is_answered = self._trace.requests, ~self._is_refused
        ttft_ms = self._first_ms - self._arrival_ms
        report = Report(
            num_requests=len(requests),
            num_refused=self.num_refused,
            duration_s=float(self._end_ms[is_answered].max(initial=0.0)) / 1e3,
            ttft_ms=spread(ttft_ms[is_answered]),
            e2e_ms=spread((self._end_ms - self._arrival_ms)[is_answered]),
            reuse=self._reuse(is_answered),
            busiest_over_mean=max(prefill_ms) * len(sums) / max(sum(prefill_ms), 1e-9),
            num_asked_blocks=sum(own.num_asked_blocks for own in sums),
            num_hit_blocks=sum(own.num_hit_blocks for own in sums),
            num_missed_blocks=sum(own.num_missed_blocks for own in sums),
            num_pieces=self.num_pieces,
            num_rerun=self.num_rerun,
            num_lost_records=num_lost_records,
            num_stale=num_stale,
            tiers=self._parts([self._standings.of(r).tier for r in requests], ttft_ms),
            tenants=self._parts([request.tenant for request in requests], ttft_ms),
        )
        return Run(
            report,
            self._arrival_ms,
            self._first_ms,
            self._end_ms,
            np.maximum(self._cached, 0),
            self._worker,
            prefill_ms,
            self._is_refused,
        )

    def _reuse(self, is_answered: npt.NDArray[np.bool_]) -> float:
        """At least 0: what is computed twice since a cache lost it between two pieces of a prompt
        was asked for once."""
        num_tokens = np.array([request.num_tokens for request in self._trace.requests])
        num_asked = int((num_tokens + self._asked_in_vain)[is_answered].sum())
        return max(0.0, 1.0 - int(self._computed[is_answered].sum()) / max(1, num_asked))

    def _parts(self, name_of: Sequence[str], ttft_ms: Floats) -> dict[str, PartReport]:
        """`name_of`: by request. Nothing if all have one name."""
        names, known = np.array(name_of), sorted(set(name_of))
        return {name: self._part(names == name, ttft_ms) for name in known if len(known) > 1}

    def _part(self, is_in: npt.NDArray[np.bool_], ttft_ms: Floats) -> PartReport:
        return PartReport(
            num_requests=int(is_in.sum()),
            num_refused=int((is_in & self._is_refused).sum()),
            ttft_ms=spread(ttft_ms[is_in & ~self._is_refused]),
        )

    def _add_computed(self, job: Job) -> int:
        """Tokens that this run of it computes; 0 if its engine has not begun."""
        if job.held is None:
            return 0
        num_cached = job.held.num_hit_blocks * self._trace.block_size
        computed = job.num_tokens - num_cached
        self._computed[job.index] += computed
        return computed
