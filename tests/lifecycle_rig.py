"""A whole fleet in one process, without Ray: routing, books, gates and executors are the real ones.

Replaced are only what needs Ray: the handle and the deployment around a replica. Their parts do
here what they do there, in the same order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any

from controllers.blocks import HASH_SCHEME
from controllers.errors import CachelaneError
from controllers.events import WorkerUp
from controllers.fair_queue import Bounds
from infra.event_bus_memory import MemoryBus
from infra.event_publisher import EventPublisher, WorkerIdentity
from infra.settings import Settings, to_settings
from serve_app.coalesce import coalesce
from serve_app.executors.base import Executor, TokenChunk
from serve_app.gate_keeper import GateKeeper, Standing
from serve_app.members import worker_name
from serve_app.ray_fleet import RayFleet
from serve_app.routing import Routing
from serve_app.stall_watch import Patience, StallWatch
from serve_app.wire import decode_call, encode_chunks, encode_failure

MAX_WAITING = 24  # at a gate: few, so that some requests meet a full one


class Replica:
    """What the deployment does around an executor."""

    def __init__(self, name: str, executor: Executor, settings: Settings, bus: MemoryBus) -> None:
        self.name = name
        self.executor = executor
        self.gate = GateKeeper(executor.info, Bounds(MAX_WAITING), 0.5)
        self.watch = StallWatch(executor)
        self.publisher = self._publisher(settings, bus)
        self.publisher.start()

    async def generate(self, call: bytes) -> AsyncIterator[bytes]:
        try:
            async for chunks in coalesce(self._run(call), 0.0):
                yield encode_chunks(chunks)
        except CachelaneError as error:
            yield encode_failure(error)

    async def _run(self, data: bytes) -> AsyncIterator[TokenChunk]:
        call = decode_call(data)
        request = call.request
        standing = Standing(
            request.service_rank, request.tenant, call.tenant_weight, call.max_wait_s
        )
        patience = Patience(call.first_token_timeout_s, call.inter_token_timeout_s)
        async with (
            self.gate.admit(request.request_id, call.uncached_tokens, standing) as ticket,
            aclosing(self.watch.generate(request, patience)) as stream,  # type: ignore[type-var]
        ):
            async for chunk in stream:
                yield ticket.on_chunk(chunk)

    def metadata(self) -> dict[str, Any]:
        info = self.executor.info
        return {
            "workers": [worker_name(self.name, 0)],
            "epoch": self.publisher.epoch,
            "info": {name: getattr(info, name) for name in info.__struct_fields__},
        }

    def _publisher(self, settings: Settings, bus: MemoryBus) -> EventPublisher:
        info = self.executor.info
        worker = worker_name(self.name, 0)
        return EventPublisher(
            source=self.executor,
            identity=WorkerIdentity(worker, self.name, 0, info.model, info.block_size),
            up=WorkerUp(
                num_blocks=info.num_blocks,
                executor=info.name,
                version=info.version,
                salt_id=HASH_SCHEME,
                max_seq_len=info.max_seq_len,
            ),
            bus=bus,
            topics=bus.topics,
            settings=settings.events,
            max_record_bytes=settings.kafka.max_record_bytes,
            extra_queued=self.gate.waiting_by_rank,
        )


class Answers:
    """A streamed call: it runs by itself, whoever reads it; `cancel` reaches it a little later."""

    def __init__(self, open_stream: Callable[[], AsyncIterator[bytes]]) -> None:
        self._queue: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue()
        self.task = asyncio.get_running_loop().create_task(self._run(open_stream))

    def cancel(self) -> None:
        self.task.cancel()

    def __aiter__(self) -> Answers:
        return self

    async def __anext__(self) -> bytes:
        item = await self._queue.get()
        if item is None:
            raise StopAsyncIteration
        if isinstance(item, BaseException):
            raise item
        return item

    async def _run(self, open_stream: Callable[[], AsyncIterator[bytes]]) -> None:
        try:
            async with aclosing(open_stream()) as stream:  # type: ignore[type-var]
                async for data in stream:
                    self._queue.put_nowait(data)
        except CachelaneError as error:
            self._queue.put_nowait(error)
        finally:
            self._queue.put_nowait(None)


class Handle:
    """What RayFleet calls; places as the router does, which asks Routing for everything."""

    def __init__(self, routing: Routing, replicas: Sequence[Replica]) -> None:
        self._routing = routing
        self._by_name = {replica.name: replica for replica in replicas}
        self.calls: set[asyncio.Task[None]] = set()

    def options(self, **_: Any) -> Handle:
        return self

    def remote(self, request_id: str, call: bytes) -> Answers:
        answers = Answers(lambda: self._placed(request_id))
        self.calls.add(answers.task)
        answers.task.add_done_callback(self.calls.discard)
        return answers

    def broadcast(self, _: str, workers: list[str]) -> Broadcast:
        for name, replica in self._by_name.items():
            if worker_name(name, 0) in workers:
                replica.publisher.request_snapshot()
        return Broadcast()

    async def _placed(self, request_id: str) -> AsyncIterator[bytes]:
        refused = self._routing.attempts.refused(request_id)
        refused.clear()
        replica = self._by_name[await self._routing.attempts.place(request_id)]
        stream = replica.generate(self._routing.attempts.encode_call(request_id))
        async with aclosing(stream) as answers:  # type: ignore[type-var]
            async for data in answers:
                yield data


class Broadcast:
    async def results_async(self, **_: Any) -> list[None]:
        return []


class Rig:
    """`fleet` over one replica for each executor."""

    def __init__(self, executors: Sequence[Executor], block_size: int) -> None:
        settings = to_settings(
            {
                "executor": {"block_size": block_size},
                "events": {"linger_s": 0.02, "drain_interval_s": 0.02},
            }
        )
        bus = MemoryBus()
        self.routing = Routing(settings, bus, seed=1)
        self.replicas = [
            Replica(f"r{number}", executor, settings, bus)
            for number, executor in enumerate(executors)
        ]
        self.handle = Handle(self.routing, self.replicas)
        self.fleet = RayFleet(self.handle, self.routing)  # type: ignore[arg-type]
        self.routing.set_members({replica.name: replica.metadata() for replica in self.replicas})

    def close(self) -> None:
        for replica in self.replicas:
            replica.publisher.close("end of the test")
            replica.executor.close()
        self.fleet.close()

    def leftovers(self) -> dict[str, Any]:
        """Every counter that is not zero."""
        found: dict[str, Any] = {}
        routing = self.routing.describe()["routing"]
        for name in ("in_flight", "waiting", "held", "reserved", "reservations_expired"):
            found[name] = routing[name]
        found["calls"] = len(self.handle.calls)
        for replica in self.replicas:
            for name, value in _counters(replica).items():
                found[f"{replica.name} {name}"] = value
        return {name: value for name, value in found.items() if value}


def _counters(replica: Replica) -> dict[str, int]:
    load, gate = replica.executor.load(), replica.gate
    num_waiting, waiting_tokens = gate.waiting()
    return {
        "active": load.num_active,
        "queued": load.num_queued,
        "prefill tokens": load.queued_prefill_tokens,
        "decode tokens": load.decode_tokens,
        "used blocks": load.used_blocks["gpu"],
        "running at the gate": gate.num_running(),
        "waiting at the gate": num_waiting,
        "waiting tokens": waiting_tokens,
        "turns": len(gate._turns),
        "watched": len(replica.watch._id_to_run),
        "streams": len(replica.executor._streams._key_to_stream),  # type: ignore[attr-defined]
        "ids": len(replica.executor._streams._id_to_stream),  # type: ignore[attr-defined]
    }


@contextmanager
def quiet(*names: str) -> Iterator[None]:
    """Warnings that are meant to come by the hundred are not printed."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
