"""Figures of a simulated run. Everything in `Report` is decided by trace, settings and seed."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Spread(msgspec.Struct, frozen=True):
    mean: float
    p50: float
    p99: float


class PartReport(msgspec.Struct, frozen=True, kw_only=True):
    """Of the requests of one tier or tenant. Times are of those that were answered."""

    num_requests: int
    num_refused: int
    ttft_ms: Spread


class ScalingReport(msgspec.Struct, frozen=True, kw_only=True):
    """`worker_s`: of all workers, from being asked for to being gone. `most_workers` at one time.
    `ttft_met`: share of requests with a first token within their tier's `ttft_slo_ms`."""

    worker_s: float
    mean_workers: float
    most_workers: int
    num_ups: int  # decisions
    num_downs: int
    ttft_met: float


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`reuse`: share of prompt tokens that no engine computed, over all times that requests ran.
    `busiest_over_mean`: prefill ms of the busiest worker over the workers' mean; of a fleet that
    scales, the share of its own time. Hit and missed blocks are full blocks of prompts, at
    admission; `num_rerun` counts requests that a dying worker had."""

    num_requests: int
    num_refused: int  # by bounds, limits or deadlines; times and reuse are of the others
    duration_s: float  # until the last token
    ttft_ms: Spread
    e2e_ms: Spread
    reuse: float
    busiest_over_mean: float
    num_asked_blocks: int
    num_hit_blocks: int
    num_missed_blocks: int
    num_pieces: int  # of long prompts, that were computed
    num_rerun: int
    num_lost_records: int
    num_stale: int  # times that a worker's cache was not known
    tiers: dict[str, PartReport] = {}  # if there are several in the trace
    tenants: dict[str, PartReport] = {}  # likewise
    scaling: ScalingReport | None = None  # of a fleet that scales


class Run(NamedTuple):
    """Arrays by request, in the order of arrival; times that never came are NaN. `worker`: index of
    the last one it was sent to."""

    report: Report
    arrival_ms: Floats
    first_token_ms: Floats
    end_ms: Floats
    cached_tokens: npt.NDArray[np.int64]
    worker: npt.NDArray[np.int64]
    prefill_ms_of: list[float]  # by worker
    is_refused: npt.NDArray[np.bool_]


def spread(values: Floats) -> Spread:
    """Zeros of no values."""
    if not len(values):
        return Spread(0.0, 0.0, 0.0)
    p50, p99 = np.quantile(values, (0.5, 0.99))
    return Spread(float(values.mean()), float(p50), float(p99))
