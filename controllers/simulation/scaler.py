"""How many workers a simulated fleet has: the policy of production, and what Ray Serve does by it.

Owns the target and which workers start or leave for it. How a worker starts, drains and dies is
the fleet's. Times are in ms.

1. Serve starts what the target lacks, a dead worker's replacement too, and lets go what is too
   many; workers that drain count for neither.
2. Those that have not started go first, the newest first; then the coldest, or the newest if the
   settings say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from controllers.autoscaling import Observation
from controllers.autoscaling_report import ReplicaReport
from controllers.autoscaling_settings import AutoscalingSettings
from controllers.scaled_fleet import ScaledFleet
from controllers.simulation.result import Run
from controllers.simulation.worker_hours import Span, with_scaling


class Present(NamedTuple):
    """Names of the workers that start or are up, oldest first, and the reports of those up."""

    starting: list[str]
    up: Mapping[str, ReplicaReport]


class Change(NamedTuple):
    """`cancelled` have not started yet."""

    num_to_start: int = 0
    cancelled: Sequence[str] = ()
    drained: Sequence[str] = ()


class Scaler:
    """Begins with the fewest workers that are allowed. To be asked every `interval_ms`; what a
    worker has not finished `drain_timeout_ms` after it was to leave, runs again elsewhere."""

    def __init__(self, settings: AutoscalingSettings) -> None:
        self.target = settings.min_replicas
        self.interval_ms = 1e3 * settings.interval_s
        self.drain_timeout_ms = 1e3 * settings.drain_timeout_s
        self._num_ups = 0
        self._num_downs = 0
        self._settings = settings
        self._fleet = ScaledFleet()

    def decide(self, present: Present, num_in_routers: int, now: float) -> Change:
        """`num_in_routers` requests wait for a worker."""
        settings, before = self._settings, self.target
        seen = Observation(
            target=before,
            num_running=len(present.up),
            reports=present.up,
            num_in_routers=num_in_routers,
            min_replicas=settings.min_replicas,
            max_replicas=settings.max_replicas,
        )
        self.target = self._fleet.decide(seen, settings, now / 1e3).target
        self._num_ups += self.target > before
        self._num_downs += self.target < before
        num = len(present.starting) + len(present.up)
        if num <= self.target:
            return Change(num_to_start=self.target - num)
        return self._shrink(present, num - self.target)

    def told(self, run: Run, spans: Sequence[Span], ttft_met: float) -> Run:
        """The run with what came of it. `spans` by worker."""
        return with_scaling(run, spans, self._num_ups, self._num_downs, ttft_met)

    def _shrink(self, present: Present, num: int) -> Change:
        cancelled = present.starting[::-1][:num]
        num -= len(cancelled)
        chosen = self._fleet.victims(present.up, num)
        if chosen is None:
            chosen = list(present.up)[::-1][:num]
        return Change(cancelled=cancelled, drained=chosen)
