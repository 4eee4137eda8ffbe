"""What every implementation of the bus promises: one suite, run in memory and on a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest

from controllers.errors import BusError
from infra.event_bus import KafkaBus
from infra.event_bus_base import Bus, Delivery, Loss, Reader, Record, ResetRequired, Topics
from infra.event_bus_memory import MemoryBus
from infra.event_producer import ProducerLimits
from tests.kafka_fixtures import TestBroker, fresh_settings, recreate_topic

NUM_PARTITIONS = 3
MAX_PENDING = 5
MAX_RECORD_BYTES = 10_000
WAIT_S = 60.0
PATIENCE_S = 120.0  # longer than a broker takes to come back, however busy the machine is


class Harness(Protocol):
    """A bus with empty topics, and the means to break it."""

    bus: Bus
    topic: str

    def take_down(self) -> None: ...

    def bring_up(self) -> None: ...

    def recreate_topic(self) -> None: ...


class MemoryHarness:
    def __init__(self) -> None:
        topics = Topics("test")
        self._bus = MemoryBus(
            topics,
            num_partitions=NUM_PARTITIONS,
            max_pending=MAX_PENDING,
            max_record_bytes=MAX_RECORD_BYTES,
        )
        self.bus: Bus = self._bus
        self.topic = topics.kv_events

    def take_down(self) -> None:
        self._bus.take_down()

    def bring_up(self) -> None:
        self._bus.bring_up()

    def recreate_topic(self) -> None:
        self._bus.recreate_topic(self.topic)


class KafkaHarness:
    def __init__(self, broker: TestBroker) -> None:
        self._broker = broker
        settings = fresh_settings(broker.bootstrap, NUM_PARTITIONS)
        limits = ProducerLimits(
            max_pending=MAX_PENDING,
            max_record_bytes=MAX_RECORD_BYTES,
            delivery_timeout_s=PATIENCE_S,
        )
        self.bus: Bus = KafkaBus(settings, limits)
        self.topic = Topics(settings.topic_prefix).kv_events

    def take_down(self) -> None:
        self._broker.take_down()

    def bring_up(self) -> None:
        self._broker.bring_up()

    def recreate_topic(self) -> None:
        recreate_topic(self._broker.bootstrap, self.topic, NUM_PARTITIONS)


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
def harness(request: pytest.FixtureRequest) -> Harness:
    if request.param == "memory":
        return MemoryHarness()
    return KafkaHarness(request.getfixturevalue("kafka_broker"))


@pytest.fixture
def open_reader(harness: Harness) -> Iterator[Callable[[int | None], Reader]]:
    readers: list[Reader] = []

    def open_one(backlog: int | None = None) -> Reader:
        readers.append(harness.bus.reader(harness.topic, backlog))
        return readers[-1]

    yield open_one
    for reader in readers:
        reader.close()


def publish_all(harness: Harness, keyed: list[tuple[bytes, bytes]]) -> list[Delivery]:
    """Publish in small steps (the harness's bound is small) and return the acknowledgements."""
    deliveries: list[Delivery] = []
    producer = harness.bus.producer(on_delivery=deliveries.append)
    for key, value in keyed:
        assert producer.publish(harness.topic, key, value)
        assert producer.flush(WAIT_S)
    producer.close()
    return deliveries


def read(reader: Reader, count: int) -> list[Record]:
    """Poll until `count` records came."""
    records: list[Record] = []
    deadline = time.monotonic() + WAIT_S
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records: {records}"
        records += reader.poll(0.1)
    return records


def until(condition: Callable[[], bool], reader: Reader | None = None) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        if reader is not None:
            assert reader.poll(0.05) == []
        else:
            time.sleep(0.02)


def values_by_key(records: list[Record]) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for record in records:
        found.setdefault(record.key, []).append(record.value)
    return found


def test_order_and_offsets_of_a_key(harness, open_reader):
    sent = [(b"w%d" % (i % 4), b"v%d" % i) for i in range(20)]
    deliveries = publish_all(harness, sent)
    records = read(open_reader(), 20)
    assert values_by_key(records) == {
        b"w%d" % k: [b"v%d" % i for i in range(k, 20, 4)] for k in range(4)
    }
    for partition in range(NUM_PARTITIONS):
        offsets = [r.offset for r in records if r.partition == partition]
        assert offsets == list(range(len(offsets)))
    assert {(d.topic, d.key, d.partition, d.offset) for d in deliveries} == {
        (harness.topic, r.key, r.partition, r.offset) for r in records
    }


def test_key_decides_the_partition(harness, open_reader):
    publish_all(harness, [(b"w%d" % (i % 8), b"x") for i in range(16)])
    places: dict[bytes, set[int]] = {}
    for record in read(open_reader(), 16):
        places.setdefault(record.key, set()).add(record.partition)
    assert [len(partitions) for partitions in places.values()] == [1] * 8


def test_timestamp_is_the_producers_clock(harness, open_reader):
    before_ms = time.time_ns() // 1_000_000
    publish_all(harness, [(b"w", b"x")])
    (record,) = read(open_reader(), 1)
    assert before_ms <= record.timestamp_ms <= time.time_ns() // 1_000_000


def test_empty_topic_is_caught_up(harness, open_reader):
    reader = open_reader()
    assert reader.lag() is None
    assert not reader.is_caught_up()
    until(reader.is_caught_up, reader)
    assert reader.lag() == 0
    until(reader.is_connected, reader)  # a client may say so once a second
    assert reader.last_error() == ""


def test_caught_up_after_reading_all(harness, open_reader):
    publish_all(harness, [(b"w%d" % i, b"x") for i in range(6)])
    reader = open_reader()
    read(reader, 6)
    until(reader.is_caught_up, reader)


def test_two_readers_get_everything(harness, open_reader):
    publish_all(harness, [(b"w", b"1"), (b"w", b"2")])
    first, second = read(open_reader(), 2), read(open_reader(), 2)
    assert first == second


def test_backlog_starts_before_the_end(harness, open_reader):
    publish_all(harness, [(b"w", b"%d" % i) for i in range(10)])
    reader = open_reader(3)
    assert [r.value for r in read(reader, 3)] == [b"7", b"8", b"9"]
    until(reader.is_caught_up, reader)
    publish_all(harness, [(b"w", b"10")])
    assert [r.value for r in read(reader, 1)] == [b"10"]


def test_no_backlog_starts_at_the_end(harness, open_reader):
    publish_all(harness, [(b"w", b"%d" % i) for i in range(3)])
    reader = open_reader(0)
    until(reader.is_caught_up, reader)
    publish_all(harness, [(b"w", b"3"), (b"x", b"4")])
    assert sorted(r.value for r in read(reader, 2)) == [b"3", b"4"]


def test_backlog_longer_than_the_log(harness, open_reader):
    publish_all(harness, [(b"w", b"1")])
    assert [r.value for r in read(open_reader(100), 1)] == [b"1"]


def test_health_counts_what_was_published(harness):
    producer = harness.bus.producer()
    producer.publish(harness.topic, b"w", b"1")
    producer.publish(harness.topic, b"w", b"2")
    assert producer.flush(WAIT_S)
    until(lambda: producer.health().is_connected)
    health = producer.health()
    producer.close()
    assert (health.num_connects, health.num_published) == (1, 2)
    assert (health.num_pending, health.pending_bytes) == (0, 0)
    assert (health.num_failed, health.num_dropped) == (0, 0)


@pytest.mark.parametrize(
    ("topic", "value", "message"),
    [
        ("{topic}", b"x" * MAX_RECORD_BYTES, "10001 bytes"),
        ("nowhere", b"x", "unknown topic 'nowhere'"),
    ],
)
def test_refused_record_changes_nothing(harness, topic, value, message):
    producer = harness.bus.producer()
    assert producer.publish(harness.topic, b"w", b"x")
    assert producer.flush(WAIT_S)
    before = producer.health()
    with pytest.raises(BusError, match=message):
        producer.publish(topic.format(topic=harness.topic), b"w", value)
    assert producer.health() == before
    producer.close()


def test_reader_of_unknown_topic(harness):
    with pytest.raises(BusError, match="unknown topic 'nowhere'"):
        harness.bus.reader("nowhere")


def test_closed_producer_takes_nothing(harness):
    producer = harness.bus.producer()
    producer.close()
    producer.close()
    assert not producer.publish(harness.topic, b"w", b"x")
    assert producer.health().num_dropped == 1


def test_bus_away_then_back(harness, open_reader):
    """Pending is bounded, nothing blocks or raises, and both sides go on where they were."""
    publish_all(harness, [(b"w", b"before")])
    losses: list[Loss] = []
    producer = harness.bus.producer(on_loss=losses.append)
    assert producer.publish(harness.topic, b"w", b"known")
    assert producer.flush(WAIT_S)
    reader = open_reader()
    assert [r.value for r in read(reader, 2)] == [b"before", b"known"]

    harness.take_down()
    until(lambda: not producer.health().is_connected)
    accepted = [producer.publish(harness.topic, b"w", b"%d" % i) for i in range(MAX_PENDING + 2)]
    assert accepted == [True] * MAX_PENDING + [False] * 2
    health = producer.health()
    assert (health.num_pending, health.num_dropped) == (MAX_PENDING, 2)
    until(lambda: not reader.is_connected(), reader)

    harness.bring_up()
    assert producer.flush(WAIT_S)
    assert [r.value for r in read(reader, MAX_PENDING)] == [b"%d" % i for i in range(MAX_PENDING)]
    until(reader.is_caught_up, reader)
    assert losses == []
    assert producer.health().num_published == 1 + MAX_PENDING
    producer.close()


def test_starts_while_the_bus_is_away(harness, open_reader):
    harness.take_down()
    producer = harness.bus.producer()
    reader = open_reader()
    assert producer.publish(harness.topic, b"w", b"early")
    assert not producer.flush(0.05)
    assert reader.poll(0.05) == []
    assert not reader.is_connected()
    health = producer.health()
    assert (health.is_connected, health.num_connects, health.num_pending) == (False, 0, 1)

    harness.bring_up()
    assert producer.flush(WAIT_S)
    assert [r.value for r in read(reader, 1)] == [b"early"]
    assert producer.health().num_connects == 1
    producer.close()


def test_close_while_away_reports_losses(harness):
    harness.take_down()
    losses: list[Loss] = []
    producer = harness.bus.producer(on_loss=losses.append)
    producer.publish(harness.topic, b"w", b"1")
    producer.publish(harness.topic, b"w", b"2")
    producer.close(0.05)
    assert losses == [
        Loss(harness.topic, b"w", value, "the producer was closed") for value in (b"1", b"2")
    ]
    health = producer.health()
    assert (health.num_pending, health.pending_bytes, health.num_failed) == (0, 0, 2)


def test_topic_created_again_is_a_reset(harness, open_reader):
    publish_all(harness, [(b"w", b"old%d" % i) for i in range(5)])
    reader = open_reader()
    read(reader, 5)
    harness.recreate_topic()
    with pytest.raises(ResetRequired, match=harness.topic):
        read(reader, 1)
    publish_all(harness, [(b"w", b"new")])
    assert [(r.offset, r.value) for r in read(reader, 1)] == [(0, b"new")]
