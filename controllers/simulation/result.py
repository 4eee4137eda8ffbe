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


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`reuse`: share of prompt tokens that no engine computed. `busiest_over_mean`: prefill ms of
    the busiest worker over the workers' mean. Hit and missed blocks are full blocks of prompts, at
    admission; `num_rerun` counts requests that a dying worker had."""

    num_requests: int
    duration_s: float  # until the last token
    ttft_ms: Spread
    e2e_ms: Spread
    reuse: float
    busiest_over_mean: float
    num_asked_blocks: int
    num_hit_blocks: int
    num_missed_blocks: int
    num_rerun: int
    num_lost_records: int
    num_stale: int  # times that a worker's cache was not known


class Run(NamedTuple):
    """Arrays by request, in the order of arrival. `worker`: index of the last one it ran on."""

    report: Report
    arrival_ms: Floats
    first_token_ms: Floats
    end_ms: Floats
    cached_tokens: npt.NDArray[np.int64]
    worker: npt.NDArray[np.int64]
    prefill_ms_of: list[float]  # by worker


def spread(values: Floats) -> Spread:
    p50, p99 = np.quantile(values, (0.5, 0.99))
    return Spread(float(values.mean()), float(p50), float(p99))
