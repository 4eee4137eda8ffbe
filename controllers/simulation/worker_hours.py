"""How long a scaled fleet held its workers, which is what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from controllers.simulation.result import Run, ScalingReport


class Span(NamedTuple):
    """A worker, from being asked for to being gone; in ms."""

    since: float
    until: float


def worker_s(spans: Sequence[Span], end: float) -> list[float]:
    """Seconds by worker, until `end` (ms) at most."""
    return [max(0.0, min(span.until, end) - span.since) / 1e3 for span in spans]


def most_at_once(spans: Sequence[Span]) -> int:
    """A worker that goes in the moment in which another one comes is not counted with it."""
    steps = [(span.since, 1) for span in spans] + [(span.until, -1) for span in spans]
    num = most = 0
    for _, step in sorted(steps):
        num += step
        most = max(most, num)
    return most


def busiest_over_mean(busy_ms: Sequence[float], seconds: Sequence[float]) -> float:
    """The largest share of its own time that a worker was busy, over that of all their time."""
    shares = [busy / own for busy, own in zip(busy_ms, seconds, strict=True) if own]
    return max(shares) * sum(seconds) / max(sum(busy_ms), 1e-9)


def with_scaling(
    run: Run, spans: Sequence[Span], num_ups: int, num_downs: int, ttft_met: float
) -> Run:
    """The run with the figures of a fleet that scales. `spans` by worker."""
    duration_s = run.report.duration_s
    seconds = worker_s(spans, 1e3 * duration_s)
    scaling = ScalingReport(
        worker_s=sum(seconds),
        mean_workers=sum(seconds) / duration_s,
        most_workers=most_at_once(spans),
        num_ups=num_ups,
        num_downs=num_downs,
        ttft_met=ttft_met,
    )
    report = msgspec.structs.replace(
        run.report,
        busiest_over_mean=busiest_over_mean(run.prefill_ms_of, seconds),
        scaling=scaling,
    )
    return run._replace(report=report)
