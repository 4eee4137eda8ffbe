"""A routing state without Ray: two or more replicas on a bus in memory, and a clock tests move."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import numpy as np

from controllers.blocks import HASH_SCHEME, block_hashes
from controllers.events import SCHEMA, Event, EventBatch, Stored, WorkerUp, hexes_of
from controllers.record_codec import encode
from controllers.records import Decision
from infra.event_bus_memory import MemoryBus
from infra.settings import Settings, to_settings
from serve_app.executors.base import ExecutorInfo, GenerateRequest, SamplingParams
from serve_app.fleet import Ask
from serve_app.members import worker_name
from serve_app.routing import Routing

BLOCK_SIZE = 4
INFO = ExecutorInfo(
    name="scripted",
    version="1",
    model="m",
    block_size=BLOCK_SIZE,
    num_blocks={"gpu": 1000},
    max_seq_len=4096,
    max_batch_size=8,
    max_batched_tokens=512,
)
UP = WorkerUp(
    num_blocks={"gpu": 1000},
    executor="scripted",
    version="1",
    salt_id=HASH_SCHEME,
    max_seq_len=4096,
)


def settings(**sections: dict[str, Any]) -> Settings:
    return to_settings({"executor": {"block_size": BLOCK_SIZE}, **sections})


def metadata(replica: str) -> dict[str, Any]:
    """What a replica says of itself to Serve."""
    info = {name: getattr(INFO, name) for name in INFO.__struct_fields__}
    return {"workers": [worker_name(replica, 0)], "epoch": 1, "info": info}


def ask(request_id: str, tokens: list[int], n: int = 1) -> Ask:
    array = np.array(tokens, np.uint32)
    return Ask(
        request=GenerateRequest(
            request_id=request_id,
            token_ids=array.tobytes(),
            sampling=SamplingParams(max_tokens=4, n=n),
        ),
        hashes=block_hashes(array, BLOCK_SIZE),
        num_tokens=len(tokens),
        request_type="interactive",
        tier="interactive",
        tenant="default",
    )


class Rig:
    """`routing` with its feed read by hand (`read`)."""

    def __init__(self, *replicas: str, **sections: dict[str, Any]) -> None:
        self.bus = MemoryBus()
        self.now = 50.0
        self.asked: list[list[str]] = []
        self.routing = Routing(settings(**sections), self.bus, lambda: self.now, seed=1)
        self.routing._feed.open(self.asked.append)
        self.routing.set_members({name: metadata(name) for name in replicas})
        self._producer = self.bus.producer()
        self._seq: dict[str, int] = {}

    def place(self, request_id: str) -> str:
        """From outside of any loop; for requests that need not wait."""
        return asyncio.run(self.routing.attempts.place(request_id))

    def publish(self, worker: str, *events: Event) -> None:
        seq = self._seq.get(worker, 0)
        self._seq[worker] = seq + 1
        batch = EventBatch(
            schema=SCHEMA,
            worker=worker,
            replica=worker[:-2],
            dp_rank=0,
            model="m",
            epoch=1,
            seq=seq,
            ts_ms=0,
            block_size=BLOCK_SIZE,
            events=list(events),
        )
        self._producer.publish(self.bus.topics.kv_events, worker.encode(), encode(batch))

    def read(self) -> None:
        self.routing._feed.turn()

    def up(self, *workers: str) -> None:
        for worker in workers:
            self.publish(worker, UP)
        self.read()

    def store(self, worker: str, tokens: list[int]) -> None:
        hashes = hexes_of(block_hashes(np.array(tokens, np.uint32), BLOCK_SIZE))
        self.publish(
            worker,
            Stored(
                parent=None,
                hashes=hashes,
                num_tokens=[BLOCK_SIZE] * len(hashes),
                retention_priority=[35] * len(hashes),
            ),
        )
        self.read()

    def decisions(self) -> list[Decision]:
        records = self.bus.reader(self.bus.topics.decisions).poll(0)
        return [msgspec.json.decode(record.value, type=Decision) for record in records]
