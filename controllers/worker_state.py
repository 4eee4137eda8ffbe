"""What is known of one worker, beyond which blocks it holds.

Owns the facts that operators and placement read. Knows no other worker and changes nothing itself.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec

from controllers.event_ops import Remove, Store, Update
from controllers.events import Cleared, Load, Snapshot
from controllers.runs import BlockClass, Holder

_Key = TypeVar("_Key", bound=Hashable)

Change: TypeAlias = Store | Remove | Update | Cleared

MIN_BLOCKS_BOUND = 65_536
MAX_LATER = 10_000


class Outcome(enum.Enum):
    """What became of a batch."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"  # its seq, or a later one, was seen
    OLD_EPOCH = "old_epoch"
    DEPARTED = "departed"  # the worker said worker_down in this epoch or a later one


class Applied(msgspec.Struct, kw_only=True):
    """Effect of one batch. Metrics and logs are made of these."""

    outcome: Outcome = Outcome.APPLIED
    num_missing: int = 0  # batches in the hole before this one
    went_stale: str | None = None  # why, if this batch made the worker stale
    is_stale: bool = False  # or unknown or silent, after this batch
    has_healed: bool = False
    num_stored: int = 0  # full blocks in `stored` events that were applied
    num_removed: int = 0  # blocks dropped by `removed` events


class Overlap(NamedTuple):
    """Leading blocks of a prompt that a worker holds, and how many of them on which medium."""

    num_blocks: int
    num_gpu: int
    num_host: int
    num_disk: int


@dataclass(slots=True)
class PendingSnapshot:
    """Parts of a snapshot until the last one arrives."""

    snapshot_id: int
    num_parts: int
    bound: int  # blocks that the worker can hold at most
    next_part: int = 0
    stores: list[Store] = field(default_factory=list)
    num_blocks: int = 0
    later: list[Change] = field(default_factory=list)  # since the first part

    def is_next(self, header: Snapshot) -> bool:
        """Whether this part follows the last one."""
        theirs = (header.snapshot_id, header.num_parts, header.part)
        return theirs == (self.snapshot_id, self.num_parts, self.next_part)

    def add(self, stores: list[Store]) -> None:
        """Keep one part."""
        self.next_part += 1
        self.stores += stores
        self.num_blocks += sum(len(store.hashes) for store in stores)

    def hashes(self) -> set[int]:
        """Every block of the parts so far."""
        return {block_hash for store in self.stores for block_hash in store.hashes}

    def is_bounded(self) -> bool:
        """Whether it is still of a size that a real worker can have."""
        return self.num_blocks <= self.bound and len(self.later) <= MAX_LATER


@dataclass(slots=True)
class WorkerState:
    """Read it, do not change it. Times `heard_at` are the table's caller's clock in seconds."""

    worker: str
    replica: str
    dp_rank: int
    model: str
    epoch: int
    block_size: int
    seq: int  # of the last batch
    stale_reason: str | None  # None: its blocks are known exactly
    holder: Holder
    is_silent: bool = False  # not heard within the time-out
    heard_at: float = 0.0
    last_ts_ms: int = 0  # of the last batch, the worker's clock
    capacity: dict[str, int] = field(default_factory=dict)  # medium -> blocks
    max_seq_len: int = 0
    executor: str = ""
    version: str = ""
    load: Load | None = None  # last one, clamped to what is possible
    num_gaps: int = 0  # batches that never arrived
    num_stale: int = 0  # times it turned stale
    num_snapshots: int = 0  # complete ones
    num_clamped_loads: int = 0
    pending: PendingSnapshot | None = None

    @property
    def is_stale(self) -> bool:
        """It scores no overlap until its next snapshot."""
        return self.stale_reason is not None

    @property
    def num_blocks(self) -> int:
        """Full blocks that the table knows it holds."""
        return self.holder.num_blocks

    @property
    def class_to_num(self) -> dict[BlockClass, int]:
        """Full blocks by medium, retention priority and tier."""
        return dict(self.holder.class_to_num)

    def num_by_medium(self) -> dict[str, int]:
        """Full blocks by medium."""
        return _sums((c.medium, num) for c, num in self.class_to_num.items())

    def num_by_retention_priority(self) -> dict[int, int]:
        """Full blocks by retention priority."""
        return _sums((c.retention_priority, num) for c, num in self.class_to_num.items())

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens reused since the engine's start."""
        return self.load.hit_tokens if self.load else 0

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens admitted since the engine's start."""
        return self.load.prompt_tokens if self.load else 0


def blocks_bound(capacity: dict[str, int]) -> int:
    """More blocks than this cannot be true of a worker: removals must have been lost unseen."""
    return max(2 * sum(capacity.values()), MIN_BLOCKS_BOUND)


def clamped(load: Load) -> Load:
    """The load without impossible values: nothing negative, no more used than there is."""
    total = {medium: max(0, num) for medium, num in load.total_blocks.items()}
    return msgspec.structs.replace(
        load,
        num_active=max(0, load.num_active),
        num_queued=max(0, load.num_queued),
        queued_prefill_tokens=max(0, load.queued_prefill_tokens),
        decode_tokens=max(0, load.decode_tokens),
        total_blocks=total,
        used_blocks=_within(load.used_blocks, total),
        cached_blocks=_within(load.cached_blocks, total),
        prompt_tokens=max(0, load.prompt_tokens),
        hit_tokens=min(max(0, load.hit_tokens), max(0, load.prompt_tokens)),
    )


def _within(blocks: dict[str, int], total: dict[str, int]) -> dict[str, int]:
    return {medium: min(max(0, num), total.get(medium, 0)) for medium, num in blocks.items()}


def _sums(pairs: Iterable[tuple[_Key, int]]) -> dict[_Key, int]:
    sums: dict[_Key, int] = {}
    for key, num in pairs:
        sums[key] = sums.get(key, 0) + num
    return sums
