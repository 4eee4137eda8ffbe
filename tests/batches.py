"""Builds the batches of one worker, with the right seq, for tests of the routing table."""

from __future__ import annotations

from collections.abc import Sequence

from controllers.blocks import HASH_SCHEME
from controllers.events import (
    Cleared,
    Event,
    EventBatch,
    Load,
    Lost,
    Removed,
    Snapshot,
    SnapshotBlocks,
    Stored,
    Updated,
    WorkerDown,
    WorkerUp,
    hex_of,
    hexes_of,
)

BLOCK_SIZE = 4


def up(scheme: str = HASH_SCHEME, gpu: int = 1000) -> WorkerUp:
    return WorkerUp(
        num_blocks={"gpu": gpu}, executor="test", version="1", salt_id=scheme, max_seq_len=4096
    )


def stored(
    parent: int | None,
    hashes: Sequence[int],
    *,
    last: int = BLOCK_SIZE,
    priority: int | Sequence[int] = 35,
    medium: str = "gpu",
    tier: str = "default",
) -> Stored:
    """`last` is the number of tokens of the last block."""
    priorities = [priority] * len(hashes) if isinstance(priority, int) else list(priority)
    return Stored(
        parent=None if parent is None else hex_of(parent),
        hashes=hexes_of(hashes),
        num_tokens=[BLOCK_SIZE] * (len(hashes) - 1) + [last],
        retention_priority=priorities,
        medium=medium,
        tier=tier,
    )


def removed(*hashes: int) -> Removed:
    return Removed(hashes=hexes_of(hashes))


def moved(medium: str, *hashes: int) -> Updated:
    return Updated(hashes=hexes_of(hashes), medium=medium)


def load(**values: object) -> Load:
    base: dict[str, object] = {
        "num_active": 0,
        "num_queued": 0,
        "queued_prefill_tokens": 0,
        "decode_tokens": 0,
        "used_blocks": {},
        "total_blocks": {},
    }
    return Load(**(base | values))  # type: ignore[arg-type]


def lost() -> Lost:
    return Lost(reason="buffer overflow", first=3, last=5)


def down() -> WorkerDown:
    return WorkerDown(reason="drained")


def snapshot(
    blocks: Sequence[tuple[int, int | None]],
    *,
    part: int = 0,
    num_parts: int = 1,
    snapshot_id: int = 1,
    num_tokens: int = BLOCK_SIZE,
    scheme: str = HASH_SCHEME,
    medium: str = "gpu",
) -> Snapshot:
    """`blocks` are (hash, parent) pairs."""
    return Snapshot(
        snapshot_id=snapshot_id,
        part=part,
        num_parts=num_parts,
        blocks=SnapshotBlocks(
            hashes=hexes_of(h for h, _ in blocks),
            parents=["" if parent is None else hex_of(parent) for _, parent in blocks],
            mediums=[medium] * len(blocks),
            retention_priority=[35] * len(blocks),
            tiers=["default"] * len(blocks),
            num_tokens=[num_tokens] * len(blocks),
        ),
        num_blocks={"gpu": 1000},
        max_seq_len=4096,
        salt_id=scheme,
    )


CLEARED = Cleared()


class Worker:
    """Numbers the batches of one worker and epoch."""

    def __init__(self, name: str = "a", epoch: int = 100, block_size: int = BLOCK_SIZE) -> None:
        self.name = name
        self.epoch = epoch
        self.block_size = block_size
        self.seq = 0

    def batch(self, *events: Event, seq: int | None = None) -> EventBatch:
        """The next batch, or the one of the given `seq`."""
        if seq is None:
            seq, self.seq = self.seq, self.seq + 1
        return EventBatch(
            schema=1,
            worker=self.name,
            replica=self.name,
            dp_rank=0,
            model="m",
            epoch=self.epoch,
            seq=seq,
            ts_ms=1000 + seq,
            block_size=self.block_size,
            events=list(events),
        )

    def restart(self) -> None:
        self.epoch += 100
        self.seq = 0
