"""The replica's figures for autoscaling: what its gate, engine and cache events say.

Owns the lock and the clock of `controllers.replica_stats`, and which requests count. Knows no Ray:
the replica hands the figures to Serve.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from controllers.autoscaling_report import figures_of
from controllers.autoscaling_settings import AutoscalingSettings
from controllers.errors import Overtaken
from controllers.events import Event, Load
from controllers.hot_prefixes import is_warm_up
from controllers.replica_stats import ReplicaShape, ReplicaStats
from serve_app.executors.base import ExecutorInfo, TokenChunk
from serve_app.wire import Call


class Timing:
    """One request's tokens, as they come."""

    def __init__(self, stats: ScalingStats, request_id: str) -> None:
        self.num_tokens = 0
        self._stats = stats
        self._request_id = request_id

    def on_chunk(self, chunk: TokenChunk) -> None:
        if not self.num_tokens:
            self._stats.first_token(self._request_id)
        self.num_tokens += len(chunk.token_ids)


class ScalingStats:
    """Requests are told on the event loop, events and loads by the publishers' threads."""

    def __init__(self, info: ExecutorInfo, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._settings = AutoscalingSettings()
        self._stats = ReplicaStats(_shape_of(info), clock())

    def configure(self, user_config: dict[str, Any]) -> None:
        """The section `autoscaling` as plain values."""
        settings = msgspec.convert(user_config.get("autoscaling", {}), AutoscalingSettings)
        with self._lock:
            self._settings = settings
            self._stats.meter.configure(settings)

    @contextmanager
    def timing(self, call: Call) -> Iterator[Timing]:
        """From the gate to the end of a request; the Timing must see its chunks."""
        request = call.request
        timing = Timing(self, request.request_id)
        # One that only warms the cache is nobody's latency.
        if not is_warm_up(request.request_id):
            self._arrived(call)
        try:
            yield timing
        except Overtaken:
            with self._lock:
                self._stats.meter.handed_back(request.request_id, self._clock())
            raise
        finally:
            per_sequence = timing.num_tokens // max(1, request.sampling.n)
            with self._lock:
                self._stats.meter.ended(request.request_id, per_sequence, self._clock())

    def first_token(self, request_id: str) -> None:
        with self._lock:
            self._stats.meter.first_token(request_id, self._clock())

    def _arrived(self, call: Call) -> None:
        request = call.request
        with self._lock:
            self._stats.watches[request.dp_rank].on_request(request.retention)
            self._stats.meter.arrived(
                request.request_id,
                call.target,
                call.uncached_tokens,
                self._clock(),
                waited_s=call.waited_s,
                is_piece=call.is_piece,
            )

    def on_events(self, dp_rank: int, events: Sequence[Event]) -> None:
        if not events:
            return
        with self._lock:
            self._stats.on_events(dp_rank, events, self._clock())

    def on_load(self, dp_rank: int, load: Load) -> None:
        with self._lock:
            self._stats.meter.on_load(dp_rank, load, self._clock())

    def figures(self, num_at_gate: int) -> dict[str, float]:
        """What Serve carries to the policy: numbers by name."""
        with self._lock:
            return figures_of(self._stats.report(num_at_gate, self._clock()), self._settings)


def _shape_of(info: ExecutorInfo) -> ReplicaShape:
    return ReplicaShape(
        max_batched_tokens=info.max_batched_tokens,
        max_running=info.max_batch_size,
        num_blocks=sum(info.num_blocks.values()),
        block_size=info.block_size,
        tokens_of_hash=info.block_size,
        num_ranks=info.num_dp_ranks,
    )
