"""The records of the log: types, encoding, decoding, laws that a single record must keep.

Owns the wire format of every topic. Does not know Kafka, the routing table or any executor.

1. A hash on the wire is a 16-digit lower-case hex string; in Python it is an unsigned 64-bit int.
2. A batch is what one worker did in one drain. `seq` counts batches: 0, 1, 2 ... per worker and
   epoch, without holes. `epoch` is the engine's start in ms and grows with every restart.
3. No token ids and no text in any record.
4. Fields are only ever added within schema 1; decoders ignore unknown fields.
5. An unknown event type is counted and skipped, but its batch still advances `seq`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias, get_args

import msgspec

from controllers.errors import EventError

SCHEMA = 1

# A larger epoch or seq would make everything that the worker says afterwards look old.
MAX_NUMBER = 2**53

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


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One record of `decisions`: what was predicted for a request and what happened."""

    schema: int
    ts_ms: int
    request_id: str
    model: str
    request_type: str
    tenant: str
    worker: str
    reason: str
    num_candidates: int
    prompt_tokens: int
    prompt_blocks: int
    predicted_cached_tokens: int
    best_cached_tokens: int  # the largest overlap any worker offered
    cached_tokens: int
    predicted_ttft_ms: float
    ttft_ms: float | None
    queue_ms: float | None
    total_ms: float
    output_tokens: int
    num_attempts: int
    status: str  # ok, cancelled, error
    # The prompt's last full block. `stored` events say what is before it, so this names all of it.
    prompt_hash: str | None = None
    system_tokens: int = 0  # of the system prompt
    history_tokens: int = 0  # of the system prompt and earlier turns
    num_pieces: int = 0  # of its prompt that were computed before the rest was sent


class ScalingDecision(msgspec.Struct, frozen=True, kw_only=True):
    """One record of `scaling`: how many replicas there should be, and what it was decided by.

    Rates and latencies are of the last window. `demand` is seconds of prefill that arrive in one
    second. Predictions are for `tier`, the one nearest to its SLO, with the old target and,
    prefixed `new_`, with the new one. What is not known is null.
    """

    schema: int
    ts_ms: int
    deployment: str
    num_replicas: int  # running
    target_replicas: int
    reason: str
    action: str = "hold"  # up, down, hold
    is_advisory: bool = False  # nothing was done
    old_target_replicas: int = 0
    min_replicas: int = 0
    max_replicas: int = 0
    num_known: int = 0  # replicas whose figures were used
    demand: float = 0.0
    growth: float = 1.0  # the demand was taken so many times as large, as it will be
    backlog_ms: float = 0.0
    requests_per_s: float = 0.0
    num_active: int = 0
    num_waiting: int = 0
    used_blocks: int = 0
    total_blocks: int = 0
    hit_rate: float | None = None
    reasked_tokens_per_s: float = 0.0  # evicted, and computed again while still wanted
    tier: str | None = None
    ttft_slo_ms: float | None = None
    itl_slo_ms: float | None = None
    ttft_missed_share: float | None = None  # measured
    itl_missed_share: float | None = None
    utilisation: float | None = None
    predicted_ttft_ms: float | None = None
    predicted_itl_ms: float | None = None
    new_utilisation: float | None = None
    new_predicted_ttft_ms: float | None = None
    new_predicted_itl_ms: float | None = None


class Booking(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request on its worker, as it is now: whoever missed what came before needs only this."""

    request_id: str
    worker: str
    state: str  # sent, first_token, done
    prefill_tokens: int  # to compute when it was sent
    num_blocks: int  # of its prompt
    rank: int = 0
    service_ms: float = (
        0.0  # time booked on the worker; what it took, once that is known to be less
    )


class BookingBatch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record of `bookings`: the bookings of one router that changed since its last record.

    With `num_parts` it is part `part` of a listing of all its open bookings instead: what is in
    none of the parts is over. `router` names one start of a router; `seq` counts its records: 0,
    1, 2 ... `num_open` is how many bookings it has under way.
    """

    schema: int
    ts_ms: int
    router: str
    seq: int
    num_open: int
    bookings: list[Booking]
    part: int = 0
    num_parts: int = 0


class PrefixUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record of `uses`: an ingress sent a request to a worker (again, after a failure), or its
    request ended. `seq` counts an ingress's records: 0, 1, 2 ...

    `hashes` has the 16 digits of each full block of the prompt, one after the other. Only the
    first record of a request says what its prompt is.
    """

    schema: int
    ts_ms: int
    router: str
    seq: int
    request_id: str
    state: str  # sent, done
    worker: str
    request_type: str = ""
    tenant: str = ""
    num_tokens: int = 0
    block_size: int = 0
    hashes: str = ""
    max_retention_priority: int = 100  # the tenant's
    is_kept: bool = True  # False: nothing of it will be asked for again
    num_cached_blocks: int | None = None  # what it found; None: nobody knows


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


class RawBatch(BatchHeader, frozen=True, kw_only=True):
    """EventBatch whose events are not decoded yet."""

    events: list[msgspec.Raw]


class Decoded(NamedTuple):
    """A batch, and how many events of a type that this program does not know were left out."""

    batch: EventBatch
    num_unknown: int


_encoder = msgspec.json.Encoder()
_batch_decoder = msgspec.json.Decoder(EventBatch)
_raw_decoder = msgspec.json.Decoder(RawBatch)
_event_decoder = msgspec.json.Decoder(Event)
_bookings_decoder = msgspec.json.Decoder(BookingBatch)
_KNOWN_TYPES = frozenset(cls.__struct_config__.tag for cls in get_args(Event))


class _TypeOnly(msgspec.Struct, frozen=True):
    type: str


_type_decoder = msgspec.json.Decoder(_TypeOnly)


def encode(record: msgspec.Struct) -> bytes:
    """JSON, one object, UTF-8."""
    return _encoder.encode(record)


def decode_batch(data: bytes) -> Decoded:
    """Decode and check one kv-events record. Raises EventError that names the path of the fault."""
    try:
        decoded = Decoded(_batch_decoder.decode(data), 0)
    except (msgspec.DecodeError, UnicodeDecodeError):
        decoded = _decode_leniently(data)
    check_batch(decoded.batch)
    return decoded


def _decode_leniently(data: bytes) -> Decoded:
    """Leaves out events of unknown type; any other fault is an EventError."""
    try:
        raw = _raw_decoder.decode(data)
        known = [e for e in raw.events if _type_decoder.decode(e).type in _KNOWN_TYPES]
        events = [_event_decoder.decode(event) for event in known]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EventError(f"kv-events record: {error}") from error
    header = {name: getattr(raw, name) for name in BatchHeader.__struct_fields__}
    return Decoded(EventBatch(**header, events=events), len(raw.events) - len(events))


def decode_bookings(data: bytes) -> BookingBatch:
    """Decode and check one bookings record; figures are the reader's to check. Raises EventError
    that names the path of the fault."""
    try:
        batch = _bookings_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EventError(f"bookings record: {error}") from error
    _check_schema(batch.schema)
    if not batch.router:
        raise EventError("router is empty")
    if batch.num_parts < 0 or not 0 <= batch.part < max(1, batch.num_parts):
        raise EventError(f"part {batch.part} of {batch.num_parts} cannot be")
    return batch


def _check_schema(schema: int) -> None:
    if schema != SCHEMA:
        raise EventError(f"schema is {schema}, this program reads {SCHEMA}")


def check_batch(batch: EventBatch) -> None:
    """Laws that msgspec's types cannot say. Raises EventError."""
    _check_schema(batch.schema)
    if not batch.worker:
        raise EventError("worker is empty")
    if batch.block_size < 1:
        raise EventError(f"block_size is {batch.block_size}, must be at least 1")
    if not (0 <= batch.epoch < MAX_NUMBER and 0 <= batch.seq < MAX_NUMBER):
        raise EventError(f"epoch {batch.epoch} and seq {batch.seq} must be in 0..{MAX_NUMBER - 1}")
