"""What a simulated worker measures of itself for autoscaling: a replica's class, in jobs and ms.

Decides nothing. Times are in ms, but for waits.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from controllers.autoscaling_report import ReplicaReport
from controllers.autoscaling_settings import AutoscalingSettings
from controllers.events import Event, Load
from controllers.replica_meter import TierTarget
from controllers.replica_stats import ReplicaShape, ReplicaStats
from controllers.simulation.engine import Ended, EngineShape, Job


class WorkerStats:
    """Of one engine, from `now` on. How long blocks are wanted is not watched: no rule asks."""

    def __init__(self, shape: EngineShape, settings: AutoscalingSettings, now: float) -> None:
        cache = shape.cache
        own = ReplicaShape(
            max_batched_tokens=shape.max_batched_tokens,
            max_running=shape.max_sequences,
            # Keys of trace blocks count blocks, so the share of them that is sampled fits blocks.
            num_blocks=cache.num_gpu_blocks + cache.num_host_blocks,
            block_size=shape.block_size,
            tokens_of_hash=cache.tokens_of_node,
        )
        self._stats = ReplicaStats(own, now / 1e3)
        self._meter = self._stats.meter
        self._meter.configure(settings)

    def arrived(
        self, job: Job, target: TierTarget, uncached_tokens: int, now: float, waited_s: float
    ) -> None:
        """At the gate. `waited_s`: before that, since it came or its last worker died."""
        self._meter.arrived(
            str(job.index),
            target,
            uncached_tokens,
            now / 1e3,
            waited_s=waited_s,
            is_piece=job.is_piece,
        )

    def ended(self, ended: Ended, now: float) -> None:
        """An iteration."""
        for job in ended.first:
            self._meter.first_token(str(job.index), now / 1e3)
        for job in ended.done:
            self._meter.ended(str(job.index), job.output_tokens, now / 1e3)

    def left(self, job: Job, now: float) -> None:
        """Its gate did not take or keep it, or nobody wants it any more."""
        self._meter.ended(str(job.index), 0, now / 1e3)

    def handed_back(self, job: Job, now: float) -> None:
        """Its gate has not started it, and it goes elsewhere."""
        self._meter.handed_back(str(job.index), now / 1e3)

    def on_events(self, events: Sequence[Event], now: float) -> None:
        self._stats.on_events(0, events, now / 1e3)

    def on_load(self, load: Load, num_at_gate: int, now: float) -> None:
        """`load` counts the gate as well, which is counted anew for each report."""
        own = msgspec.structs.replace(load, num_queued=load.num_queued - num_at_gate)
        self._meter.on_load(0, own, now / 1e3)

    def report(self, num_at_gate: int, now: float) -> ReplicaReport:
        return self._stats.report(num_at_gate, now / 1e3)
