"""What one replica measures for autoscaling: its meter and the watches over its caches, one report.

Knows no lock, clock or Ray; `serve_app.scaling_stats` has them, and
`controllers.simulation.worker_stats` is a simulated worker's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from controllers.autoscaling_report import ReplicaReport
from controllers.cache_watch import CacheWatch
from controllers.events import Event
from controllers.replica_meter import ReplicaMeter


class ReplicaShape(NamedTuple):
    """Of one replica; what is not said to be its own is each rank's."""

    max_batched_tokens: int
    max_running: int  # requests
    num_blocks: int  # of all media together
    block_size: int
    tokens_of_hash: int  # in events; the block size, but for a simulated worker
    num_ranks: int = 1  # its own


class ReplicaStats:
    """`meter` is to be told of requests and loads; `watches`, one of each rank, of what requests
    ask to keep."""

    def __init__(self, shape: ReplicaShape, now: float) -> None:
        self.meter = ReplicaMeter(shape.max_batched_tokens, shape.num_ranks, now)
        self.watches = [CacheWatch(shape.num_blocks) for _ in range(shape.num_ranks)]
        self._shape = shape

    def on_events(self, dp_rank: int, events: Sequence[Event], now: float) -> None:
        num_reasked = self.watches[dp_rank].on_events(events, now)
        if num_reasked:
            self.meter.on_reasked(num_reasked, now)

    def report(self, num_at_gate: int, now: float) -> ReplicaReport:
        """`num_at_gate` requests wait in front of the engine, and are in no load."""
        shape = self._shape
        return ReplicaReport(
            **self.meter.figures(num_at_gate, now),
            max_running=shape.max_running * shape.num_ranks,
            block_size=shape.block_size,
            content_tokens=shape.tokens_of_hash * sum(w.content_blocks for w in self.watches),
            tiers=self.meter.tiers(now),
            sample=self.watches[0].sample(),
        )
