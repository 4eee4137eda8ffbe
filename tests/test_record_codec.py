from __future__ import annotations

import json

import msgspec
import pytest

from controllers.errors import EventError
from controllers.events import SCHEMA, Cleared, EventBatch, Removed, Stored
from controllers.record_codec import decode_batch, decode_bookings, encode
from controllers.records import Booking, BookingBatch
from tests.records import EVERY_EVENT, RECORDS

STORED = Stored(parent=None, hashes=["00" * 8], num_tokens=[4], retention_priority=[100])
REMOVED = Removed(hashes=["0123456789abcdef"])


def batch(*events: object, **header: object) -> EventBatch:
    base: dict[str, object] = {
        "schema": SCHEMA,
        "worker": "r1/0",
        "replica": "r1",
        "dp_rank": 0,
        "model": "m",
        "epoch": 1_700_000_000_000,
        "seq": 0,
        "ts_ms": 1_700_000_000_001,
        "block_size": 4,
        "events": list(events),
    }
    return EventBatch(**(base | header))  # type: ignore[arg-type]


def as_json(*events: object, **header: object) -> dict:
    return json.loads(encode(batch(*events))) | header


def test_every_type_survives_the_wire():
    sent = batch(*EVERY_EVENT)
    assert decode_batch(encode(sent)) == (sent, 0)


def test_an_empty_batch_survives_the_wire():
    assert decode_batch(encode(batch())) == (batch(), 0)


def test_events_are_tagged_and_defaults_left_out():
    stored, cleared = as_json(STORED, Cleared())["events"]
    assert stored == {
        "type": "stored",
        "parent": None,
        "hashes": ["0000000000000000"],
        "num_tokens": [4],
        "retention_priority": [100],
    }
    assert cleared == {"type": "cleared"}


@pytest.mark.parametrize(
    "record",
    [record for records in RECORDS.values() for record in records],
    ids=lambda record: type(record).__name__,
)
def test_records_survive_the_wire(record):
    assert msgspec.json.decode(encode(record), type=type(record)) == record


BOOKINGS = BookingBatch(
    schema=SCHEMA,
    ts_ms=1,
    router="x",
    seq=3,
    num_open=2,
    bookings=[
        Booking(
            request_id="q",
            worker="r1/0",
            state="sent",
            prefill_tokens=10,
            num_blocks=3,
            rank=1,
            service_ms=2.5,
        ),
        Booking(request_id="r", worker="r1/0", state="done", prefill_tokens=0, num_blocks=0),
    ],
    part=1,
    num_parts=2,
)


def test_bookings_survive_the_wire_and_defaults_take_no_room():
    assert decode_bookings(encode(BOOKINGS)) == BOOKINGS
    record = json.loads(encode(BOOKINGS))
    assert sorted(record["bookings"][1]) == [
        "num_blocks",
        "prefill_tokens",
        "request_id",
        "state",
        "worker",
    ]
    record["added"] = record["bookings"][0]["added"] = "later"
    assert decode_bookings(json.dumps(record).encode()) == BOOKINGS


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schema": 2}, "schema is 2, this program reads 1"),
        ({"router": ""}, "router is empty"),
        ({"part": 2}, "part 2 of 2 cannot be"),
        ({"part": -1}, "part -1 of 2 cannot be"),
        ({"num_parts": -1}, "part 1 of -1 cannot be"),
        ({"num_parts": 0}, "part 1 of 0 cannot be"),
        ({"bookings": [{}]}, "bookings record: Object missing required field `request_id`"),
        ({"seq": "3"}, "bookings record: Expected `int`, got `str` - at `$.seq`"),
    ],
)
def test_bad_bookings_records(fields, message):
    record = json.loads(encode(BOOKINGS)) | fields
    with pytest.raises(EventError) as caught:
        decode_bookings(json.dumps(record).encode())
    assert str(caught.value).startswith(message)


def test_unknown_types_and_fields_are_left_out():
    record = as_json(REMOVED, Cleared(), added="later")
    record["events"][0]["added"] = [1]
    record["events"][1:1] = [{"type": "compacted", "x": 1}, {"type": "stored_v2"}]
    decoded = decode_batch(json.dumps(record).encode())
    assert decoded == (batch(REMOVED, Cleared()), 2)


GOOD = as_json(STORED)


def changed(**header: object) -> bytes:
    return json.dumps(GOOD | header).encode()


def changed_event(**fields: object) -> bytes:
    return changed(events=[GOOD["events"][0] | fields])


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\xff\xfe random \x80 bytes",
        b"",
        b"{}",
        b"[]",
        b"null",
        b"3",
        b'"text"',
        b"x" * 5_000_000,
        encode(batch(STORED))[:-1],
        encode(batch(STORED)) + b"{}",
        changed(events=None),
        changed(events={}),
        changed(events=[None]),
        changed(events=[[]]),
        changed(events=["stored"]),
        changed(events=[{}]),
        changed(events=[{"type": None}]),
        changed(events=[{"type": 5}]),
        changed(seq="0"),
        changed(seq=1.5),
        changed(epoch=None),
        changed(worker=7),
        changed_event(hashes=None),
        changed_event(hashes=[None]),
        changed_event(hashes=[5]),
        changed_event(num_tokens=["4"]),
        changed_event(retention_priority="35"),
        changed_event(parent=5),
        # one bad event beside an unknown type is still a fault
        changed(events=[{"type": "new"}, {"type": "stored", "hashes": 5}]),
        # laws of the header
        changed(schema=2),
        changed(worker=""),
        changed(block_size=0),
        changed(block_size=-1),
        changed(epoch=-1),
        changed(seq=-1),
    ],
)
def test_a_bad_record_is_an_event_error_and_the_next_one_is_read(data):
    with pytest.raises(EventError):
        decode_batch(data)
    assert decode_batch(encode(batch(*EVERY_EVENT))) == (batch(*EVERY_EVENT), 0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed(seq="0"), "kv-events record: Expected `int`, got `str` - at `$.seq`"),
        (changed(schema=2), "schema is 2, this program reads 1"),
        (changed(block_size=0), "block_size is 0, must be at least 1"),
    ],
)
def test_the_error_names_the_fault(data, message):
    with pytest.raises(EventError) as raised:
        decode_batch(data)
    assert str(raised.value) == message


@pytest.mark.parametrize("field", ["epoch", "seq"])
@pytest.mark.parametrize("value", [-1, 2**53])
def test_an_epoch_or_seq_out_of_bounds_is_refused(field: str, value: int) -> None:
    record = json.loads(encode(batch()))
    with pytest.raises(EventError, match=str(value)):
        decode_batch(json.dumps({**record, field: value}).encode())
    assert decode_batch(json.dumps({**record, field: 2**53 - 1}).encode()).num_unknown == 0
