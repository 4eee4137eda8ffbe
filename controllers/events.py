"""What workers tell of their caches: the events and records of `kv-events`.

The records of the other topics are in `records`, bytes and laws in `record_codec`. Knows no Kafka,
routing table or executor.

1. A hash on the wire is a 16-digit lower-case hex string; in Python it is an unsigned 64-bit int.
2. A batch is what one worker did in one drain. `seq` counts batches: 0, 1, 2 ... per worker and
   epoch, without holes. `epoch` is the engine's start in ms and grows with every restart.
3. No token ids and no text in any record, of any topic.
4. Fields are only ever added within schema 1; decoders ignore unknown fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from controllers.errors import EventError

SCHEMA = 1

MEDIUMS = ("gpu", "host", "disk")


class WorkerUp(msgspec.Struct, tag="worker_up", frozen=True, kw_only=True, omit_defaults=True):
    """First event of an epoch: the worker's cache is empty and has these sizes."""

    num_blocks: dict[str, int]  # medium -> blocks
    executor: str
    version: str
    salt_id: str  # names the hash scheme; tables refuse workers of another scheme
    max_seq_len: int


class Stored(msgspec.Struct, tag="stored", frozen=True, kw_only=True, omit_defaults=True):
    """Consecutive blocks of one prefix became resident.

    `parent` is the hash before hashes[0] (None: the root). Within the event the parent of
    hashes[i] is hashes[i - 1]. `num_tokens` is the tokens of each block: all equal the block
    size except possibly the last (a partial block, which never counts for routing).
    """

    parent: str | None
    hashes: list[str]
    num_tokens: list[int]
    retention_priority: list[int]
    medium: str = "gpu"
    tier: str = "default"
    tenant: str = "default"


class Removed(msgspec.Struct, tag="removed", frozen=True, kw_only=True, omit_defaults=True):
    """Blocks left the cache (every medium), in the order of their eviction."""

    hashes: list[str]


class Updated(msgspec.Struct, tag="updated", frozen=True, kw_only=True, omit_defaults=True):
    """Blocks moved to another medium or changed their retention priority; None: unchanged."""

    hashes: list[str]
    medium: str | None = None
    old_medium: str | None = None
    retention_priority: int | None = None
    old_retention_priority: int | None = None


class Cleared(msgspec.Struct, tag="cleared", frozen=True, kw_only=True, omit_defaults=True):
    """The whole cache was dropped."""


class SnapshotBlocks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Resident blocks as parallel arrays; a parent comes before its children, "" is the root."""

    hashes: list[str]
    parents: list[str]
    mediums: list[str]
    retention_priority: list[int]
    tiers: list[str]
    num_tokens: list[int]


class Snapshot(msgspec.Struct, tag="snapshot", frozen=True, kw_only=True, omit_defaults=True):
    """Part `part` (0-based) of `num_parts` of the worker's whole state.

    Parts of one snapshot share `snapshot_id` and come in consecutive batches. When the last part
    arrives the set replaces the state; a set with a hole is torn and replaces nothing.
    """

    snapshot_id: int
    part: int
    num_parts: int
    blocks: SnapshotBlocks
    num_blocks: dict[str, int]  # capacity by medium, so that a late reader needs no worker_up
    max_seq_len: int
    salt_id: str
    executor: str = ""
    version: str = ""


class Iteration(msgspec.Struct, frozen=True, array_like=True):
    """Timing of one kind of engine iteration since the last record, for the cost model.

    `new_tokens` prefilled, `num_decodes` sequences that decoded, `active_blocks` in use, `ms`
    mean duration, `count` iterations of this shape.
    """

    new_tokens: int
    num_decodes: int
    active_blocks: int
    ms: float
    count: int = 1


class Load(msgspec.Struct, tag="load", frozen=True, kw_only=True, omit_defaults=True):
    """What the worker is doing now. Sent at least once a second, also when idle: the heartbeat."""

    num_active: int  # requests the engine runs
    num_queued: int  # requests in the replica's gate and the engine's own queue
    queued_prefill_tokens: int  # uncached prompt tokens not computed yet
    decode_tokens: int  # context tokens of the sequences that decode
    used_blocks: dict[str, int]  # medium -> blocks held by live requests (gpu), resident (host)
    total_blocks: dict[str, int]
    cached_blocks: dict[str, int] = {}  # medium -> resident blocks, in use or reusable
    hit_tokens: int = 0  # prompt tokens reused since the engine's start
    prompt_tokens: int = 0  # prompt tokens admitted since the engine's start
    # Of what waits in the replica's gate: rank (0 the best) -> requests and their uncached tokens.
    queued_by_rank: dict[int, tuple[int, int]] = {}
    is_stalled: bool = False  # a request's time ran out, and none got a token since
    iterations: list[Iteration] = []


class Lost(msgspec.Struct, tag="lost", frozen=True, kw_only=True, omit_defaults=True):
    """The source lost events: ids [first, last] of the executor's own numbering; None: unknown."""

    reason: str
    first: int | None = None
    last: int | None = None


class WorkerDown(msgspec.Struct, tag="worker_down", frozen=True, kw_only=True, omit_defaults=True):
    """The worker leaves; its blocks are gone."""

    reason: str


Event: TypeAlias = (
    WorkerUp | Stored | Removed | Updated | Cleared | Snapshot | Load | Lost | WorkerDown
)


class BatchHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Who did it and when: every record of `kv-events` begins with it."""

    schema: int
    worker: str
    replica: str
    dp_rank: int
    model: str
    epoch: int
    seq: int
    ts_ms: int
    block_size: int


class EventBatch(BatchHeader, frozen=True, kw_only=True):
    """One record of `kv-events`: header and events in order."""

    events: list[Event]


def hex_of(block_hash: int) -> str:
    """16 digits; right for signed and unsigned 64-bit ints."""
    return f"{block_hash & 0xFFFFFFFFFFFFFFFF:016x}"


def hexes_of(hashes: Iterable[int]) -> list[str]:
    """hex_of for many."""
    return [f"{h & 0xFFFFFFFFFFFFFFFF:016x}" for h in hashes]


def ints_of(hexes: Sequence[str]) -> list[int]:
    """Inverse of hexes_of. Raises EventError for anything that is not 16 hex digits."""
    num = len(hexes)
    try:
        # Joined by blanks, which fromhex passes over; their places tell that each has 16 digits.
        joined = " ".join(hexes)
        raw = bytes.fromhex(joined)
    except (ValueError, TypeError) as error:
        raise EventError(f"block hash is not hexadecimal: {list(hexes)[:3]!r}") from error
    if len(raw) != 8 * num or (num and joined[16::17] != " " * (num - 1)):
        raise EventError(f"block hashes must have 16 hex digits: {list(hexes)[:3]!r}")
    return list(struct.unpack(f">{num}Q", raw))
