from __future__ import annotations

import json

import msgspec
import pytest

from controllers.errors import EventError
from controllers.events import (
    SCHEMA,
    Booking,
    BookingBatch,
    Cleared,
    Decision,
    EventBatch,
    Iteration,
    Load,
    Lost,
    Removed,
    ScalingDecision,
    Snapshot,
    SnapshotBlocks,
    Stored,
    Updated,
    WorkerDown,
    WorkerUp,
    decode_batch,
    decode_bookings,
    encode,
    hex_of,
    hexes_of,
    ints_of,
)

EVENTS = (
    WorkerUp(
        num_blocks={"gpu": 100, "host": 400},
        executor="local",
        version="1",
        salt_id="scheme",
        max_seq_len=4096,
    ),
    Stored(parent=None, hashes=["00" * 8], num_tokens=[4], retention_priority=[100]),
    Stored(
        parent="ff" * 8,
        hashes=["00" * 8, "0123456789abcdef"],
        num_tokens=[4, 3],
        retention_priority=[80, 60],
        medium="host",
        tier="gold",
        tenant="acme",
    ),
    Removed(hashes=["0123456789abcdef"]),
    Updated(hashes=["00" * 8], medium="host", old_medium="gpu"),
    Updated(hashes=["00" * 8], retention_priority=10, old_retention_priority=35),
    Cleared(),
    Snapshot(
        snapshot_id=3,
        part=0,
        num_parts=2,
        blocks=SnapshotBlocks(
            hashes=["00" * 8],
            parents=[""],
            mediums=["gpu"],
            retention_priority=[35],
            tiers=["default"],
            num_tokens=[4],
        ),
        num_blocks={"gpu": 100},
        max_seq_len=4096,
        salt_id="scheme",
    ),
    Load(
        num_active=1,
        num_queued=2,
        queued_prefill_tokens=3,
        decode_tokens=4,
        used_blocks={"gpu": 5},
        total_blocks={"gpu": 6},
        cached_blocks={"gpu": 7},
        hit_tokens=8,
        prompt_tokens=9,
        iterations=[Iteration(1, 2, 3, 4.5, 6)],
    ),
    Lost(reason="event id gap", first=3, last=5),
    Lost(reason="buffer overflow"),
    WorkerDown(reason="drained"),
)


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
    sent = batch(*EVENTS)
    assert decode_batch(encode(sent)) == (sent, 0)


def test_an_empty_batch_survives_the_wire():
    assert decode_batch(encode(batch())) == (batch(), 0)


def test_events_are_tagged_and_defaults_left_out():
    stored, cleared = as_json(EVENTS[1], Cleared())["events"]
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
    [
        Decision(
            schema=SCHEMA,
            ts_ms=1,
            request_id="q",
            model="m",
            request_type="agent",
            tenant="acme",
            worker="r1/0",
            reason="overlap",
            num_candidates=2,
            prompt_tokens=10,
            prompt_blocks=2,
            predicted_cached_tokens=8,
            best_cached_tokens=8,
            cached_tokens=8,
            predicted_ttft_ms=1.5,
            ttft_ms=None,
            queue_ms=None,
            total_ms=2.5,
            output_tokens=0,
            num_attempts=1,
            status="cancelled",
        ),
        ScalingDecision(
            schema=SCHEMA, ts_ms=1, deployment="d", num_replicas=1, target_replicas=2, reason="r"
        ),
    ],
    ids=lambda record: type(record).__name__,
)
def test_flat_records_survive_the_wire(record):
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
    record = as_json(EVENTS[3], Cleared(), added="later")
    record["events"][0]["added"] = [1]
    record["events"][1:1] = [{"type": "compacted", "x": 1}, {"type": "stored_v2"}]
    decoded = decode_batch(json.dumps(record).encode())
    assert decoded == (batch(EVENTS[3], Cleared()), 2)


GOOD = as_json(EVENTS[1])


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
        encode(batch(EVENTS[1]))[:-1],
        encode(batch(EVENTS[1])) + b"{}",
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
    assert decode_batch(encode(batch(*EVENTS))) == (batch(*EVENTS), 0)


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


def test_hex_is_16_digits_of_the_unsigned_number():
    assert hex_of(0) == "0000000000000000"
    assert hex_of(0xABC) == "0000000000000abc"
    assert hex_of(2**64 - 1) == hex_of(-1) == "ffffffffffffffff"
    assert ints_of(hexes_of([0, 5, 2**64 - 1])) == [0, 5, 2**64 - 1]
    assert ints_of([]) == []


@pytest.mark.parametrize(
    "hexes",
    [
        ["xyz"],
        ["0" * 15],
        ["0" * 17],
        ["0" * 15, "0" * 17],
        ["0" * 15 + "g"],
        ["0" * 8 + " " + "0" * 7],
        ["0x" + "0" * 14],
        ["é" * 16],
        [""],
    ],
)
def test_anything_else_is_no_hash(hexes):
    with pytest.raises(EventError, match="block hash"):
        ints_of(hexes)


@pytest.mark.parametrize("field", ["epoch", "seq"])
@pytest.mark.parametrize("value", [-1, 2**53])
def test_an_epoch_or_seq_out_of_bounds_is_refused(field: str, value: int) -> None:
    record = json.loads(encode(batch()))
    with pytest.raises(EventError, match=str(value)):
        decode_batch(json.dumps({**record, field: value}).encode())
    assert decode_batch(json.dumps({**record, field: 2**53 - 1}).encode()).num_unknown == 0
