"""The bookings of others, as they come from the log."""

from __future__ import annotations

import pytest

from controllers.events import SCHEMA
from controllers.record_codec import encode
from controllers.records import BookingBatch
from infra.bookings_feed import BookingsCounters, BookingsFeed
from infra.event_bus_memory import MemoryBus
from tests.kafka_fixtures import wait_until


def record(router: str, seq: int, ts_ms: int = 0) -> bytes:
    return encode(
        BookingBatch(schema=SCHEMA, ts_ms=ts_ms, router=router, seq=seq, num_open=0, bookings=[])
    )


class Rig:
    """A feed whose thread is the test."""

    def __init__(self) -> None:
        self.bus = MemoryBus()
        self.producer = self.bus.producer()
        self.now = 100.0
        self.heard: list[tuple[str, int, float]] = []
        self.turns: list[float] = []
        self.feed = BookingsFeed(
            bus=self.bus,
            topics=self.bus.topics,
            own_id="own",
            pause_s=0.0,
            on_batch=lambda batch, now: self.heard.append((batch.router, batch.seq, now)),
            on_turn=self.turns.append,
            clock=lambda: self.now,
        )

    def publish(self, router: str, seq: int, value: bytes | None = None) -> None:
        data = record(router, seq) if value is None else value
        self.producer.publish(self.bus.topics.bookings, router.encode(), data)


def test_it_starts_at_the_end_and_leaves_out_its_own() -> None:
    rig = Rig()
    rig.publish("r1", 0)
    assert not rig.feed.turn()
    rig.publish("r1", 1)
    rig.publish("own", 0)
    rig.publish("r1", 2)
    rig.now = 101.0
    assert rig.feed.turn()
    assert rig.heard == [("r1", 1, 101.0), ("r1", 2, 101.0)]
    assert rig.turns == [100.0, 101.0]
    assert rig.feed.counters.num_records == 2


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x00\xff",
        b"[]",
        b'{"schema": 1}',
        record("r1", 7).replace(b'"schema":1', b'"schema":2'),
        record("r1", 7).replace(b'"r1"', b'""'),
        record("r1", 7).replace(b'"bookings":[]', b'"bookings":[],"part":1,"num_parts":1'),
        record("r1", 7).replace(b'"bookings":[]', b'"bookings":[],"part":-1'),
        record("r1", 7).replace(b'"seq":7', b'"seq":NaN'),
    ],
)
def test_a_bad_record_is_counted_and_the_next_one_is_read(value: bytes) -> None:
    rig = Rig()
    rig.feed.turn()
    rig.publish("r1", 7, value)
    rig.publish("r1", 8)
    rig.feed.turn()
    assert rig.heard == [("r1", 8, 100.0)]
    assert (rig.feed.counters.num_records, rig.feed.counters.num_bad) == (2, 1)


def test_an_outage_loses_nothing_that_was_written() -> None:
    rig = Rig()
    rig.feed.turn()
    assert rig.feed.is_connected()
    rig.publish("r1", 0)
    rig.bus.take_down()
    rig.publish("r1", 1)
    assert not rig.feed.turn()
    assert not rig.feed.is_connected()
    assert rig.turns == [100.0, 100.0]
    rig.bus.bring_up()
    rig.feed.turn()
    assert rig.heard == [("r1", 0, 100.0), ("r1", 1, 100.0)]


def test_a_log_that_was_created_again_is_read_on() -> None:
    rig = Rig()
    rig.feed.turn()
    rig.bus.recreate_topic(rig.bus.topics.bookings)
    assert not rig.feed.turn()
    rig.feed.turn()
    rig.publish("r1", 3)
    rig.feed.turn()
    assert rig.heard == [("r1", 3, 100.0)]
    assert rig.feed.counters.num_resets == 1


def test_its_thread_reads_until_it_is_closed() -> None:
    rig = Rig()
    rig.feed.start()
    wait_until(lambda: bool(rig.turns))
    rig.publish("r1", 0)
    wait_until(lambda: rig.heard == [("r1", 0, 100.0)])
    assert rig.feed.is_alive()
    rig.feed.close()
    assert not rig.feed.is_alive()


def test_lag_is_by_the_two_clocks() -> None:
    rig = Rig()
    assert rig.feed.counters == BookingsCounters()
    rig.feed.turn()
    rig.publish("r1", 0, record("r1", 0, ts_ms=2**50))
    rig.feed.turn()
    assert rig.feed.counters.lag_ms == 0.0
