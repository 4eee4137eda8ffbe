"""`cachelane events`: where reading ends, and how records look."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from controllers import events as ev
from controllers.errors import SetupError
from controllers.record_codec import encode
from controllers.records import Booking, BookingBatch, Decision, PrefixUse, ScalingDecision
from infra.event_bus_base import Topics
from infra.event_bus_memory import MemoryBus
from infra.process_session import ProcessId
from infra.run_state import RunState, StateDir
from serve_app.cli_events import Topic, bus_settings, json_line, lines_of, read

KV_EVENTS = "test.kv-events"
TS_MS = int(datetime(2026, 1, 2, 3, 4, 5, 678000).timestamp() * 1000)
HASHES = [f"{n:016x}" for n in range(1, 6)]


def bus_with(num_records: int) -> MemoryBus:
    bus = MemoryBus(Topics("test"))
    producer = bus.producer()
    for number in range(num_records):
        producer.publish(KV_EVENTS, b"w", str(number).encode())
    producer.close()
    return bus


def values(bus: MemoryBus, **options: object) -> list[bytes]:
    reader = bus.reader(KV_EVENTS)
    return [record.value for record in read(reader, **options)]  # type: ignore[arg-type]


def batch(*events: ev.Event) -> bytes:
    return encode(
        ev.EventBatch(
            schema=1,
            worker="a7f3-0",
            replica="a7f3",
            dp_rank=0,
            model="m",
            epoch=17,
            seq=4,
            ts_ms=TS_MS,
            block_size=32,
            events=list(events),
        )
    )


def test_reading_ends_at_the_end_of_the_log() -> None:
    assert values(bus_with(3), follow=False) == [b"0", b"1", b"2"]
    assert values(bus_with(0), follow=False) == []


def test_reading_ends_after_max_records() -> None:
    assert values(bus_with(5), follow=True, max_records=2) == [b"0", b"1"]


def test_following_ends_with_the_time() -> None:
    assert values(bus_with(2), follow=True, timeout_s=0.05) == [b"0", b"1"]


def test_following_sees_what_comes_later() -> None:
    bus = bus_with(1)
    records = read(bus.reader(KV_EVENTS), follow=True, max_records=2)
    assert next(records).value == b"0"
    producer = bus.producer()
    producer.publish(KV_EVENTS, b"w", b"later")
    assert [record.value for record in records] == [b"later"]
    producer.close()


def test_a_batch_is_a_line_for_each_event() -> None:
    data = batch(
        ev.WorkerUp(
            num_blocks={"gpu": 512}, executor="local", version="1", salt_id="s", max_seq_len=8192
        ),
        ev.Stored(
            parent=None,
            hashes=HASHES,
            num_tokens=[32] * 5,
            retention_priority=[100, 100, 60, 60, 60],
        ),
        ev.Removed(hashes=HASHES[:1]),
        ev.Updated(hashes=HASHES[:2], medium="host", old_medium="gpu"),
        ev.Load(
            num_active=2,
            num_queued=1,
            queued_prefill_tokens=0,
            decode_tokens=0,
            used_blocks={"gpu": 7},
            total_blocks={"gpu": 512},
            cached_blocks={"gpu": 40, "host": 2},
        ),
        ev.Cleared(),
        ev.WorkerDown(reason="stopped"),
    )
    head = "03:04:05.678  a7f3-0  17/4  "
    assert lines_of(Topic.KV_EVENTS, data) == [
        f"{head}{line}"
        for line in (
            "worker_up  local 1  blocks gpu=512",
            f"stored  {','.join(HASHES[:3])} and 2 more (160 tokens) after the root  gpu"
            "  priority 100,60  tier default  tenant default",
            f"removed  hashes {HASHES[0]}",
            f"updated  hashes {','.join(HASHES[:2])}  medium host  old_medium gpu",
            "load  active 2  queued 1  used gpu=7  cached gpu=40,host=2",
            "cleared",
            "worker_down  reason stopped",
        )
    ]


def test_an_unknown_event_is_counted() -> None:
    record = msgspec.json.decode(batch(ev.Cleared()))
    record["events"].append({"type": "melted"})
    lines = lines_of(Topic.KV_EVENTS, msgspec.json.encode(record))
    assert [line.split("  ", 3)[3] for line in lines] == ["cleared", "1 events of unknown types"]


def test_a_flat_record() -> None:
    record = ScalingDecision(
        schema=1,
        ts_ms=TS_MS,
        deployment="Executor",
        num_replicas=2,
        target_replicas=3,
        reason="queue",
    )
    assert lines_of(Topic.SCALING, encode(record)) == [
        "03:04:05.678  deployment Executor  num_replicas 2  target_replicas 3  reason queue  "
        "action hold  is_advisory False  old_target_replicas 0  min_replicas 0  max_replicas 0  "
        "num_known 0  demand 0.0  growth 1.0  backlog_ms 0.0  requests_per_s 0.0  num_active 0  "
        "num_waiting 0  used_blocks 0  total_blocks 0  reasked_tokens_per_s 0.0"
    ]


def test_the_hashes_of_a_use_are_not_printed_in_full() -> None:
    record = PrefixUse(
        schema=1, ts_ms=TS_MS, router="r1", seq=0, request_id="q", state="sent", worker="a-0",
        request_type="agent", num_tokens=170, block_size=32, hashes="".join(HASHES),
    )  # fmt: skip
    assert lines_of(Topic.USES, encode(record)) == [
        "03:04:05.678  router r1  seq 0  request_id q  state sent  worker a-0  request_type agent"
        "  num_tokens 170  block_size 32  hashes 0000000000000001... (80 characters)"
    ]


def test_bookings() -> None:
    sent = Booking(
        request_id="q1",
        worker="a-0",
        state="sent",
        prefill_tokens=100,
        num_blocks=4,
        rank=1,
        service_ms=12.34,
    )
    done = Booking(request_id="q2", worker="b-0", state="done", prefill_tokens=7, num_blocks=1)
    record = BookingBatch(
        schema=1, ts_ms=TS_MS, router="r1", seq=5, num_open=3, bookings=[sent, done]
    )
    assert lines_of(Topic.BOOKINGS, encode(record)) == [
        "03:04:05.678  router r1  5  sent  q1  a-0  100 tokens  4 blocks  rank 1  12.3 ms",
        "03:04:05.678  router r1  5  done  q2  b-0  7 tokens  1 blocks  rank 0  0.0 ms",
    ]
    listing = BookingBatch(
        schema=1, ts_ms=TS_MS, router="r1", seq=6, num_open=0, bookings=[], num_parts=1
    )
    assert lines_of(Topic.BOOKINGS, encode(listing)) == [
        "03:04:05.678  router r1  6  listing 1 of 1  0 open"
    ]
    assert lines_of(Topic.BOOKINGS, b"{}") == [
        "damaged record: bookings record: Object missing required field `schema`"
    ]


def test_a_decision() -> None:
    record = Decision(
        schema=1,
        ts_ms=TS_MS,
        request_id="r1",
        model="m",
        request_type="interactive",
        tenant="default",
        worker="a7f3-0",
        reason="overlap",
        num_candidates=2,
        prompt_tokens=100,
        prompt_blocks=3,
        predicted_cached_tokens=64,
        best_cached_tokens=96,
        cached_tokens=70,
        predicted_ttft_ms=30.0,
        ttft_ms=41.6,
        queue_ms=0.1,
        total_ms=600.2,
        output_tokens=16,
        num_attempts=1,
        status="ok",
    )
    assert lines_of(Topic.DECISIONS, encode(record)) == [
        "03:04:05.678  r1  interactive  a7f3-0  overlap  cached 70 of 100 tokens (predicted 64, "
        "best 96)  first token 42 ms  16 tokens in 600 ms  ok"
    ]


@pytest.mark.parametrize("topic", [Topic.KV_EVENTS, Topic.DECISIONS])
def test_a_damaged_record_does_not_end_the_reading(topic: Topic) -> None:
    (line,) = lines_of(topic, b"{")
    assert line.startswith("damaged record: ")


def test_the_bus_of_the_running_service(tmp_path: Path) -> None:
    state = StateDir.at(tmp_path)
    state.create()
    with pytest.raises(SetupError, match="nothing is running"):
        bus_settings(None, None, tmp_path)
    starter = ProcessId.of(1)
    assert starter is not None
    state.save(RunState(starter=starter, url=""))
    state.settings_file.write_text("kafka: {bootstrap_servers: 'k:9092', topic_prefix: mine}\n")
    found = bus_settings(None, None, tmp_path)
    assert (found.bootstrap_servers, found.topic_prefix) == ("k:9092", "mine")


def test_another_bus(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("kafka: {bootstrap_servers: 'k:9092', topic_prefix: mine}\n")
    found = bus_settings("other:9092", config, tmp_path)
    assert (found.bootstrap_servers, found.topic_prefix) == ("other:9092", "mine")


@pytest.mark.parametrize("value", [b"", b"{", b"\x9e\xff", b'"\xff"', b"\xff" * 1000])
def test_a_damaged_record_is_still_one_line_of_json(value: bytes) -> None:
    line = json_line(value)
    shown = msgspec.json.decode(line)
    assert "\n" not in line
    assert shown["num_bytes"] == len(value)
    assert set(shown) == {"damaged_record", "num_bytes"}


def test_a_record_is_shown_as_it_is_in_one_line() -> None:
    assert json_line(b'{"a":"\\n\xc3\xa9"}') == '{"a":"\\né"}'
    assert json_line(b'{\n"a": 1}') == '{ "a": 1}'
