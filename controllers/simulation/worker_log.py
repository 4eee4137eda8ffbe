"""What a simulated worker writes to the log: its records, numbered, and snapshots of its cache.

Owns epoch and seq. What becomes of a record on its way is `event_log`'s.
"""

from __future__ import annotations

from controllers.blocks import HASH_SCHEME
from controllers.events import (
    SCHEMA,
    Event,
    EventBatch,
    Snapshot,
    SnapshotBlocks,
    WorkerDown,
    WorkerUp,
)
from controllers.simulation.cache import Cache
from controllers.simulation.cache_store import CacheShape
from controllers.simulation.node import MEDIUMS

EXECUTOR = "simulated"
MAX_SEQ_LEN = 1 << 24


class WorkerLog:
    """`now` is in ms."""

    def __init__(self, worker: str, shape: CacheShape) -> None:
        self.worker = worker
        self._shape = shape
        self._epoch = 0
        self._seq = 0
        self._num_snapshots = 0

    def start(self, now: float) -> EventBatch:
        """First record of an epoch."""
        self._epoch += 1
        self._seq = 0
        up = WorkerUp(
            num_blocks=self._num_blocks(),
            executor=EXECUTOR,
            version="",
            salt_id=HASH_SCHEME,
            max_seq_len=MAX_SEQ_LEN,
        )
        return self.batch([up], now)

    def end(self, reason: str, now: float) -> EventBatch:
        return self.batch([WorkerDown(reason=reason)], now)

    def batch(self, events: list[Event], now: float) -> EventBatch:
        seq, self._seq = self._seq, self._seq + 1
        return EventBatch(
            schema=SCHEMA,
            worker=self.worker,
            replica=self.worker,
            dp_rank=0,
            model="",
            epoch=self._epoch,
            seq=seq,
            ts_ms=int(now),
            block_size=self._shape.tokens_of_node,
            events=events,
        )

    def snapshot(self, cache: Cache, now: float) -> EventBatch:
        """Everything that prompts can find in the cache."""
        self._num_snapshots += 1
        rows = list(cache.contents())
        blocks = SnapshotBlocks(
            hashes=[row[0] for row in rows],
            parents=[row[1] for row in rows],
            mediums=[MEDIUMS[row[2].level] for row in rows],
            retention_priority=[row[2].retention_priority for row in rows],
            tiers=["default"] * len(rows),
            num_tokens=[self._shape.tokens_of_node] * len(rows),
        )
        part = Snapshot(
            snapshot_id=self._num_snapshots,
            part=0,
            num_parts=1,
            blocks=blocks,
            num_blocks=self._num_blocks(),
            max_seq_len=MAX_SEQ_LEN,
            salt_id=HASH_SCHEME,
            executor=EXECUTOR,
        )
        return self.batch([part], now)

    def _num_blocks(self) -> dict[str, int]:
        return {"gpu": self._shape.num_gpu_blocks, "host": self._shape.num_host_blocks}
