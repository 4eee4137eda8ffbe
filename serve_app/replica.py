"""The Serve deployment that owns one executor: ids in, ids out.

Owns the executor, its gate (what waits before the engine starts it) and its event publisher. Knows
nothing of text, HTTP, other replicas or why the request came here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec
from ray import serve

from controllers.blocks import HASH_SCHEME
from controllers.errors import CachelaneError, ExecutorDead, ExecutorError
from controllers.events import Event, Load, WorkerUp
from controllers.fair_queue import Bounds
from controllers.gate import GATHER_S
from infra.event_bus import KafkaBus
from infra.event_bus_base import Topics
from infra.event_publisher import EventPublisher, WorkerIdentity
from infra.settings import Settings, to_settings
from serve_app.coalesce import coalesce
from serve_app.executors.base import Executor, TokenChunk
from serve_app.executors.factory import create_executor
from serve_app.gate_keeper import GateKeeper, Standing
from serve_app.members import worker_name
from serve_app.model_files import model_path_on_this_node
from serve_app.profile_tools import place_of
from serve_app.profiling import Profiler
from serve_app.scaling_stats import ScalingStats
from serve_app.stall_watch import Patience, StallWatch
from serve_app.wire import decode_call, encode_chunks, encode_failure

logger = logging.getLogger(__name__)

# Items of one stream are sent at least this far apart, the first one at once: at 100 tokens/s a
# token still travels alone, at 1,000 they share the handle's cost.
MIN_SEND_INTERVAL_S = 0.004


class RankSource:
    """One data-parallel rank of an executor, as its event publisher sees it."""

    def __init__(
        self, executor: Executor, watch: StallWatch, stats: ScalingStats, dp_rank: int
    ) -> None:
        self._executor = executor
        self._watch = watch
        self._stats = stats
        self._dp_rank = dp_rank

    def drain_events(self, timeout_s: float) -> list[Event]:
        events = self._executor.drain_events(timeout_s, self._dp_rank)
        self._stats.on_events(self._dp_rank, events)
        return events

    def load(self) -> Load:
        load = self._executor.load(self._dp_rank)
        self._stats.on_load(self._dp_rank, load)
        return msgspec.structs.replace(load, is_stalled=self._watch.is_stalled)


class ExecutorReplica:
    """One executor; each of its data-parallel ranks is a worker."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings: Settings = to_settings(settings)
        model_path = model_path_on_this_node(self._settings)
        self._executor: Executor = create_executor(
            self._settings, str(model_path) if model_path else None
        )
        self._watch = StallWatch(self._executor, on_stall=self._on_stall)
        self._stats = ScalingStats(self._executor.info)
        options = self._settings.executor
        self._gate = GateKeeper(
            self._executor.info,
            Bounds(options.max_waiting_requests, options.max_waiting_tokens),
            options.max_kept_share,
            GATHER_S,
        )
        self._replica = serve.get_replica_context().replica_id.unique_id
        bus = KafkaBus(self._settings.kafka)
        ranks = range(self._executor.info.num_dp_ranks)
        self._publishers = {self._worker(rank): self._publisher(rank, bus) for rank in ranks}
        for publisher in self._publishers.values():
            publisher.start()
        self._profiler = Profiler(self._replica, list(self._publishers), place_of(options))

    def _worker(self, dp_rank: int) -> str:
        return worker_name(self._replica, dp_rank)

    def _publisher(self, dp_rank: int, bus: KafkaBus) -> EventPublisher:
        info, settings = self._executor.info, self._settings
        worker = self._worker(dp_rank)
        return EventPublisher(
            source=RankSource(self._executor, self._watch, self._stats, dp_rank),
            identity=WorkerIdentity(worker, self._replica, dp_rank, info.model, info.block_size),
            up=WorkerUp(
                num_blocks=info.num_blocks,
                executor=info.name,
                version=info.version,
                salt_id=HASH_SCHEME,
                max_seq_len=info.max_seq_len,
            ),
            bus=bus,
            topics=Topics(settings.kafka.topic_prefix),
            settings=settings.events,
            max_record_bytes=settings.kafka.max_record_bytes,
            # The gate is in front of all ranks; counted once, it is in the first one's record.
            extra_queued=self._gate.waiting_by_rank if dp_rank == 0 else dict,
        )

    async def generate(self, request_id: str, call: bytes) -> AsyncIterator[bytes]:
        """Stream of wire answers. Cancelling it aborts the request in the executor.

        `request_id` is what the router finds the request by; here it is for the log.
        """
        try:
            async for chunks in coalesce(self._run(call), MIN_SEND_INTERVAL_S):
                yield encode_chunks(chunks)
        except CachelaneError as error:
            yield encode_failure(error)
        except Exception:
            logger.exception("request %s", request_id)
            yield encode_failure(ExecutorError(f"internal error in replica {self._replica}"))

    async def _run(self, data: bytes) -> AsyncIterator[TokenChunk]:
        call = decode_call(data)
        request = call.request
        standing = Standing(
            request.service_rank,
            request.tenant,
            call.tenant_weight,
            call.max_wait_s,
            # The gate is in front of all ranks; what the router knows is of one.
            call.max_ahead_tokens if self._executor.info.num_dp_ranks == 1 else None,
            call.has_peers,
        )
        self._watch.check_open()
        with self._stats.timing(call) as timing:
            async with self._gate.admit(
                request.request_id, call.uncached_tokens, standing
            ) as ticket:
                patience = Patience(call.first_token_timeout_s, call.inter_token_timeout_s)
                async with aclosing(self._watch.generate(call.request, patience)) as stream:  # type: ignore[type-var]
                    async for chunk in stream:
                        timing.on_chunk(chunk)
                        yield ticket.on_chunk(chunk)

    def _on_stall(self) -> None:
        """What waits here would find out one by one what is known already."""
        self._gate.turn_away("the executor takes requests and makes no tokens")

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Called by Serve at start and on every change of the policies."""
        self._stats.configure(user_config)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Read by Serve at every interval of autoscaling, if that is on."""
        num_waiting, _ = self._gate.waiting()
        return self._stats.figures(num_waiting)

    async def publish_snapshot(self, workers: list[str]) -> None:
        """Tell a table everything, of the workers it asked for that are here."""
        for worker in self._publishers.keys() & set(workers):
            self._publishers[worker].request_snapshot()

    async def profile(self, order: dict[str, Any]) -> dict[str, Any]:
        """Capture, if `order` names a worker of this replica; see `serve_app.profiling`."""
        return await self._profiler.answer(order)

    def record_replica_metadata(self) -> dict[str, Any]:
        """Read once by Serve when the replica is ready; every router of it gets this."""
        info = self._executor.info
        return {
            "workers": list(self._publishers),
            "epoch": max(publisher.epoch for publisher in self._publishers.values()),
            "info": {name: getattr(info, name) for name in info.__struct_fields__},
        }

    async def check_health(self) -> None:
        """Called by Serve; raising makes it replace the replica."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._check)

    def _check(self) -> None:
        self._executor.check_health()
        if self._watch.is_stalled:
            raise ExecutorDead("the executor takes requests and makes no tokens")
        for worker, publisher in self._publishers.items():
            if not publisher.is_alive():
                raise ExecutorDead(f"the event thread of {worker} has ended")

    def __del__(self) -> None:
        for publisher in getattr(self, "_publishers", {}).values():
            publisher.close("replica stopped")
        executor = getattr(self, "_executor", None)
        if executor is not None:
            executor.close()
