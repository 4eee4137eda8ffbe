"""Records to bytes and back, and the laws that a single record must keep.

Owns JSON as the form of every topic. An event of an unknown type is counted and skipped, but its
batch still advances `seq`.
"""

from __future__ import annotations

from typing import NamedTuple, get_args

import msgspec

from controllers.errors import EventError
from controllers.events import SCHEMA, BatchHeader, Event, EventBatch
from controllers.records import BookingBatch

# A larger epoch or seq would make everything that the worker says afterwards look old.
MAX_NUMBER = 2**53


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
    _check_batch(decoded.batch)
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


def _check_batch(batch: EventBatch) -> None:
    """Laws that msgspec's types cannot say. Raises EventError."""
    _check_schema(batch.schema)
    if not batch.worker:
        raise EventError("worker is empty")
    if batch.block_size < 1:
        raise EventError(f"block_size is {batch.block_size}, must be at least 1")
    if not (0 <= batch.epoch < MAX_NUMBER and 0 <= batch.seq < MAX_NUMBER):
        raise EventError(f"epoch {batch.epoch} and seq {batch.seq} must be in 0..{MAX_NUMBER - 1}")
