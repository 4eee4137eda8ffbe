"""How long an engine iteration takes, fitted online from the timings that workers report.

    T(n) = a + b u + c u^2    prefill part, u = new tokens / most of one iteration; 0 without any
    D(p) = d + e p + f p^2    decode part, p = blocks in use / a reference number of blocks

Recursive least squares with forgetting over one curve for all workers of a kind, times a speed for
each worker. Everything is in milliseconds. Knows nothing of requests or of what is booked.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from controllers.curve import FLOOR_MS, Curve
from controllers.events import Iteration
from controllers.numbers import (
    Floats,
    Numbers,
    constant,
    largest,
    rounded_down,
    rounded_up,
    smallest,
)

FORGETTING = 0.9995  # about 2,000 iterations
# A GPU with 8,192 tokens in a full iteration. In units of its own full iteration any engine has
# this shape within an order of magnitude; in absolute tokens a laptop's slope would be 200 times
# off, and its first samples would be taken for a large fixed part.
PRIOR = (10.0, 200.0, 0.0, 10.0, 30.0, 0.0)
PRIOR_VARIANCES = (1e2, 1e4, 1e3, 1e2, 1e3, 1e3)
MAX_TRACE = 1e6  # of the covariance: an hour of equal samples must not make the next one explode it
# Within this distance of 1 a worker's speed counts as 1: noise of 1 % would pick the same "fastest"
# idle worker again and again.
SPEED_DEAD_BAND = 0.15
# The curve learns the kind's scale before any worker's speed does; otherwise the first workers look
# many times slower than the prior, and workers that join later look fast.
NUM_CURVE_ONLY_SAMPLES = 32
# A worker that gets no work sends no timings: what its speed was when the machine was busy counts
# no longer than the curve itself remembers, or it would never be tried again.
MAX_SPEED_AGE_SAMPLES = 2000
# A worker that became this many times slower or faster than it was, so many samples in a row, is
# another one from now on: the running mean would take hundreds of samples to say so.
SURPRISE = 2.0
NUM_SURPRISES = 8
MAX_SAMPLE_MS = 600_000.0
MAX_SAMPLE_TOKENS = 10_000_000


class CostModel:
    """The curve of one kind of worker.

    `max_batched_tokens` is the most new tokens of one iteration. `num_bad_samples` counts samples
    that were left out because a figure was impossible.
    """

    def __init__(self, max_batched_tokens: int = 8192) -> None:
        self.max_batched_tokens = max_batched_tokens
        self.num_samples = 0
        self.num_bad_samples = 0
        self._coefficients = np.array(PRIOR)
        self._covariance = np.diag(PRIOR_VARIANCES)
        self._max_share = 0.0
        self._speeds: dict[str, _Speed] = {}
        self._typical = 1.0  # ratio of observed to predicted of a usual worker
        self._max_tokens = constant(max_batched_tokens)
        self._curves: _Curves | None = None  # None: it has learned since they were asked for

    @property
    def coefficients(self) -> tuple[float, ...]:
        """(a, b, c, d, e, f) in ms."""
        return tuple(self._coefficients.tolist())

    def observe(self, worker: str, iteration: Iteration, reference_blocks: int) -> None:
        """One sample, a run of equal iterations included. Impossible samples change nothing."""
        if not _is_possible(iteration, reference_blocks):
            self.num_bad_samples += 1
            return
        self.num_samples += 1
        self._curves = None
        features = _features(iteration, reference_blocks, self.max_batched_tokens)
        predicted = float(features @ self._coefficients)
        self._max_share = max(self._max_share, float(features[4]))
        if self.speed(worker) == 1.0:
            # Only usual workers teach: a wrong speed would bend the curve, and that the next speed.
            self._update(features, iteration.ms - predicted)
        if self.num_samples > NUM_CURVE_ONLY_SAMPLES and predicted > 1.0:
            speed = self._speeds.setdefault(worker, _Speed())
            speed.observe(iteration.ms / predicted, self.num_samples)
            ratios = sorted([known.ratio for known in self._speeds.values()])
            self._typical = ratios[(len(ratios) - 1) // 2]

    def speed(self, worker: str) -> float:
        """How many times longer than a usual worker this one takes. Were it the curve that it is
        compared with, curve and speeds could drift apart together: half of the one times twice the
        other explains the timings as well."""
        known = self._speeds.get(worker)
        if known is None or self.num_samples - known.last_sample > MAX_SPEED_AGE_SAMPLES:
            return 1.0
        ratio = known.ratio / self._typical
        return 1.0 if abs(ratio - 1.0) <= SPEED_DEAD_BAND else ratio

    def forget(self, worker: str) -> None:
        """Its speed, not what it taught the curve."""
        self._speeds.pop(worker, None)

    def prefill_ms(self, num_tokens: Numbers, decode_ms: Numbers, speed: Numbers) -> Numbers:
        """Time to prefill this many tokens, in iterations of at most `max_batched_tokens` that each
        also carry a decode part of `decode_ms`. Numbers, or arrays by worker."""
        own_ms, num_iterations = self.prefill_parts(num_tokens)
        return own_ms * speed + num_iterations * decode_ms

    def prefill_parts(self, num_tokens: Numbers) -> tuple[Numbers, Numbers]:
        """Its time at a speed of 1 while nobody decodes, and the iterations that it takes."""
        curve, full_ms = self._known()[:2]
        if isinstance(num_tokens, float):
            iterations: Numbers = num_tokens / self.max_batched_tokens
        else:
            iterations = num_tokens / self._max_tokens
            if smallest(iterations) > 0.0 and largest(iterations) < 1.0:
                return curve.at(iterations), 1.0
        num_full, num_all = rounded_down(iterations), rounded_up(iterations)
        rest_ms = curve.at(iterations - num_full)
        return num_full * full_ms + (num_all - num_full) * rest_ms, num_all

    def decode_ms(self, share: Numbers, speed: Numbers) -> Numbers:
        """Decode part of an iteration with `share` of the reference blocks in use. Beyond the
        largest share observed it stays flat: a parabola fitted near 0 says nothing about 1."""
        return self._known().decode.at(share) * speed

    @property
    def idle_ms(self) -> float:
        """Decode part with no blocks in use, at a speed of 1."""
        return self._known().idle_ms

    def _known(self) -> _Curves:
        if self._curves is None:
            a, b, c, d, e, f = self.coefficients
            prefill, decode = Curve(a, b, c), Curve(d, e, f, self._max_share or 1.0)
            self._curves = _Curves(prefill, float(prefill.at(1.0)), decode, max(FLOOR_MS, d))
        return self._curves

    def _update(self, features: Floats, error: float) -> None:
        gain = self._covariance @ features
        explained = float(features @ gain)
        if not explained >= 0.0:
            # Rounding has cost the matrix its definiteness; its scale is what matters, start anew.
            self._covariance = np.diag(PRIOR_VARIANCES)
            return
        weight = FORGETTING + explained
        self._coefficients = self._coefficients + gain * (error / weight)
        self._covariance = (self._covariance - gain[:, np.newaxis] * gain / weight) / FORGETTING
        trace = float(self._covariance.trace())
        if trace > MAX_TRACE:
            self._covariance *= MAX_TRACE / trace


class _Curves(NamedTuple):
    """Of what was learned so far: parts of an iteration in ms, and two of their values."""

    prefill: Curve
    full_ms: float
    decode: Curve
    idle_ms: float


class _Speed:
    """Running mean of observed / predicted; starts at 1 with the weight of 20 samples."""

    def __init__(self) -> None:
        self.ratio = 1.0
        self.last_sample = 0  # of the whole fleet, when this worker was last timed
        self._num_samples = 0
        self._surprises: list[float] = []  # the last ratios, all far off on the same side

    def observe(self, ratio: float, sample: int) -> None:
        self.last_sample = sample
        self._num_samples += 1
        self._note_surprise(ratio)
        if len(self._surprises) == NUM_SURPRISES:
            self.ratio = sum(self._surprises) / NUM_SURPRISES
            self._num_samples = NUM_SURPRISES
            self._surprises = []
            return
        self.ratio += max(0.01, 1.0 / (self._num_samples + 20)) * (ratio - self.ratio)

    def _note_surprise(self, ratio: float) -> None:
        is_slower, is_faster = ratio > SURPRISE * self.ratio, ratio * SURPRISE < self.ratio
        if self._surprises and (self._surprises[-1] > self.ratio) != is_slower:
            self._surprises = []
        if is_slower or is_faster:
            self._surprises.append(ratio)
        else:
            self._surprises = []


def _features(iteration: Iteration, reference_blocks: int, max_batched_tokens: int) -> Floats:
    u = iteration.new_tokens / max_batched_tokens
    p = min(1.0, iteration.active_blocks / reference_blocks)
    prefill = (1.0, u, u * u) if iteration.new_tokens > 0 else (0.0, 0.0, 0.0)
    decode = (1.0, p, p * p) if iteration.num_decodes > 0 else (0.0, 0.0, 0.0)
    return np.array(prefill + decode)


def _is_possible(iteration: Iteration, reference_blocks: int) -> bool:
    new_tokens, num_decodes = iteration.new_tokens, iteration.num_decodes
    return (
        0 <= new_tokens <= MAX_SAMPLE_TOKENS
        and 0 <= num_decodes <= MAX_SAMPLE_TOKENS
        and new_tokens + num_decodes > 0
        and iteration.active_blocks >= 0
        and reference_blocks > 0
        and math.isfinite(iteration.ms)
        and 0.0 < iteration.ms <= MAX_SAMPLE_MS
    )
