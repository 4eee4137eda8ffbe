"""A router's bookings on the log: what is told when, and what a reader makes of it."""

from __future__ import annotations

import logging

import pytest

from controllers.booking_sums import NO_TOTALS, Totals
from controllers.events import SCHEMA
from controllers.other_routers import OtherRouters
from controllers.record_codec import decode_bookings
from controllers.records import Booking, BookingBatch
from infra.event_bus_memory import MemoryBus
from serve_app.booking_log import LIST_INTERVAL_S, MAX_PER_RECORD, BookingLog
from tests.kafka_fixtures import wait_until


def booking(request_id: str = "q", worker: str = "a-0") -> Booking:
    return Booking(
        request_id=request_id,
        worker=worker,
        state="sent",
        prefill_tokens=100,
        num_blocks=4,
        rank=1,
        service_ms=50.0,
    )


class Rig:
    """A log whose thread is the test, on a bus in memory."""

    def __init__(self, max_record_bytes: int = 1_000_000) -> None:
        self.bus = MemoryBus(max_record_bytes=max_record_bytes)
        self.now = 100.0
        self.log = self.opened("r1", max_record_bytes)
        self.reader = self.bus.reader(self.bus.topics.bookings)

    def opened(self, router: str, max_record_bytes: int = 1_000_000) -> BookingLog:
        return BookingLog(
            bus=self.bus,
            topics=self.bus.topics,
            router=router,
            linger_s=0.01,
            max_age_s=900.0,
            max_record_bytes=max_record_bytes,
            clock=lambda: self.now,
        )

    def sent(self, request_id: str = "q", worker: str = "a-0") -> None:
        self.log.sent(booking(request_id, worker))

    def told(self) -> list[BookingBatch]:
        records = self.reader.poll(0.0)
        assert {record.key for record in records} <= {b"r1"}
        return [decode_bookings(record.value) for record in records]

    def rested(self) -> None:
        """Both listing and linger are over."""
        self.log.turn()
        self.log.turn()
        self.told()


def states(batches: list[BookingBatch]) -> list[list[tuple[str, str]]]:
    return [[(b.request_id, b.state) for b in batch.bookings] for batch in batches]


def test_a_booking_from_sent_to_done() -> None:
    rig = Rig()
    rig.rested()
    rig.sent()
    (first,) = rig.told()
    sent = booking()
    assert first == BookingBatch(
        schema=SCHEMA, ts_ms=first.ts_ms, router="r1", seq=1, num_open=1, bookings=[sent]
    )
    rig.now += 0.02
    rig.log.first_token("q")
    rig.log.turn()
    rig.log.done("q")
    rig.log.turn()
    started, done = rig.told()
    assert (started.seq, started.num_open, done.seq, done.num_open) == (2, 1, 3, 0)
    (entry,) = started.bookings
    assert (entry.state, entry.service_ms, entry.prefill_tokens) == ("first_token", 20.0, 100)
    (entry,) = done.bookings
    assert (entry.state, entry.service_ms, entry.worker) == ("done", 20.0, "a-0")


def test_service_is_what_was_booked_if_it_took_longer() -> None:
    rig = Rig()
    rig.rested()
    rig.sent()
    rig.now += 1.0
    rig.log.done("q")
    rig.log.turn()
    assert [b.service_ms for batch in rig.told() for b in batch.bookings] == [50.0, 50.0]


def test_the_first_change_goes_at_once_and_others_go_together() -> None:
    rig = Rig()
    rig.rested()
    rig.sent("q")
    rig.sent("r")
    rig.log.first_token("q")
    rig.sent("s")
    assert states(rig.told()) == [[("q", "sent")]]
    assert rig.log.turn()
    assert states(rig.told()) == [[("r", "sent"), ("q", "first_token"), ("s", "sent")]]
    rig.log.done("s")
    assert rig.told() == []
    assert rig.log.turn()
    assert states(rig.told()) == [[("s", "done")]]
    assert not rig.log.turn()
    rig.log.done("r")
    assert states(rig.told()) == [[("r", "done")]]


def test_unknown_ids_and_second_calls_tell_nothing() -> None:
    rig = Rig()
    rig.rested()
    rig.log.first_token("q")
    rig.log.done("q")
    rig.sent("q")
    rig.log.first_token("q")
    rig.log.turn()
    rig.told()
    rig.log.first_token("q")
    assert not rig.log.turn()
    rig.log.done("q")
    rig.log.done("q")
    assert states(rig.told()) == [[("q", "done")]]


def test_a_listing_every_second_also_of_nothing() -> None:
    rig = Rig()
    rig.log.turn()
    rig.log.turn()
    rig.now += LIST_INTERVAL_S
    rig.sent()
    rig.log.turn()
    batches = rig.told()
    assert [(b.seq, b.num_open, b.part, b.num_parts) for b in batches] == [
        (0, 0, 0, 1),
        (1, 1, 0, 0),
        (2, 1, 0, 1),
    ]
    assert states(batches) == [[], [("q", "sent")], [("q", "sent")]]


def test_changes_go_before_a_listing() -> None:
    """A reader learns what was given back before it hears that the rest is over."""
    rig = Rig()
    rig.rested()
    rig.sent("q")
    rig.log.done("q")
    rig.now += LIST_INTERVAL_S
    rig.log.turn()
    assert states(rig.told()) == [[("q", "sent")], [("q", "done")], []]


def test_long_lists_are_parts_that_a_reader_takes_in_quickly() -> None:
    rig = Rig()
    rig.rested()
    num_requests = 2 * MAX_PER_RECORD + 1
    for number in range(num_requests):
        rig.sent(f"q{number}")
    rig.log.turn()
    rig.now += LIST_INTERVAL_S
    rig.log.turn()
    batches = rig.told()
    assert [(len(b.bookings), b.part, b.num_parts) for b in batches] == [
        (1, 0, 0),
        (MAX_PER_RECORD, 0, 0),
        (MAX_PER_RECORD, 0, 0),
        (MAX_PER_RECORD, 0, 3),
        (MAX_PER_RECORD, 1, 3),
        (1, 2, 3),
    ]
    late = OtherRouters("r2")
    for batch in batches[3:]:
        late.apply(batch, 0.0)
    assert late.totals("a-0") == Totals(100 * num_requests, num_requests, 4 * num_requests, 513)


def test_records_stay_below_the_largest_allowed() -> None:
    rig = Rig(max_record_bytes=10_000)
    rig.rested()
    for number in range(50):
        rig.sent(f"{number:0300d}")
    rig.log.turn()
    assert [len(batch.bookings) for batch in rig.told()] == [1, 19, 19, 11]


def test_a_request_that_is_sent_again_is_another_booking() -> None:
    rig = Rig()
    others = OtherRouters("r2")
    rig.rested()
    rig.sent("q", "a-0")
    rig.log.done("q")
    rig.sent("q", "b-0")
    rig.log.turn()
    for batch in rig.told():
        others.apply(batch, 0.0)
    assert others.totals("a-0") == NO_TOTALS
    assert others.totals("b-0") == Totals(100, 1, 4, 1)


def test_what_nobody_ends_is_left_out_after_a_while() -> None:
    rig = Rig()
    rig.sent("old")
    rig.now += 900.0
    rig.sent("new")
    rig.now += 1.0
    rig.log.turn()
    assert states(rig.told())[-1] == [("new", "sent")]
    rig.log.turn()
    rig.log.done("old")
    assert not rig.log.turn()
    assert rig.told() == []


def test_an_end_says_that_nothing_is_under_way() -> None:
    rig = Rig()
    rig.rested()
    rig.sent("q")
    rig.log.close()
    rig.log.close()
    rig.sent("r")
    rig.log.done("q")
    batches = rig.told()
    assert states(batches) == [[("q", "sent")], []]
    assert [(b.num_open, b.num_parts) for b in batches] == [(1, 0), (0, 1)]


def test_a_bus_that_takes_nothing_is_complained_of_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    rig.rested()
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            rig.sent("x" * 2_000_000)
            rig.now += LIST_INTERVAL_S
            rig.log.turn()
            assert len(caplog.records) == 1, number
        rig.now += 60.0
        rig.log.turn()
    messages = [r.getMessage() for r in caplog.records]
    assert len(messages) == 2
    assert messages[0].startswith("other routers are not told of bookings: a record of 2000")
    assert rig.told() == []
    # What could be told is: the hole in the numbers says that something is missing.
    rig.log.done("x" * 2_000_000)
    rig.sent("q")
    rig.log.turn()
    rig.now += LIST_INTERVAL_S
    rig.log.turn()
    assert states(rig.told())[-1] == [("q", "sent")]


def test_its_thread_tells_what_came_during_the_linger() -> None:
    bus = MemoryBus()
    log = BookingLog(
        bus=bus,
        topics=bus.topics,
        router="r1",
        linger_s=0.002,
        max_age_s=900.0,
        max_record_bytes=1_000_000,
    )
    others, reader = OtherRouters("r2"), bus.reader(bus.topics.bookings)

    def totals() -> Totals:
        for record in reader.poll(0.0):
            others.apply(decode_bookings(record.value), 0.0)
        return others.totals("a-0")

    log.start()
    try:
        for number in range(100):
            log.sent(booking(f"q{number}"))
        wait_until(lambda: totals() == Totals(10_000, 100, 400, 100))
        for number in range(100):
            log.done(f"q{number}")
        wait_until(lambda: totals() == NO_TOTALS)
        assert log.is_alive()
    finally:
        log.close()
    assert not log.is_alive()
    assert (others.num_gaps, others.num_missing()) == (0, 0)


def test_one_that_is_sent_elsewhere_ends_where_it_was() -> None:
    """In one record: its end must not be lost behind what follows."""
    rig = Rig()
    rig.rested()
    reader = OtherRouters("r2")
    rig.sent("q", "a-0")
    (first,) = rig.told()
    assert reader.apply(first, rig.now) == {"a-0": 50.0}
    rig.now += 0.002
    rig.log.done("q")
    rig.sent("q", "b-0")
    rig.log.turn()
    (moved,) = rig.told()
    assert states([moved]) == [[("q", "done"), ("q", "sent")]]
    assert reader.apply(moved, rig.now) == {"a-0": -48.0, "b-0": 50.0}
    assert reader.totals("a-0") == NO_TOTALS

    rig.log.done("q")
    rig.sent("q", "a-0")
    rig.log.done("q")
    rig.sent("q", "b-0")
    rig.log.turn()
    for batch in rig.told():
        reader.apply(batch, rig.now)
    assert (reader.totals("a-0"), reader.totals("b-0").num_requests) == (NO_TOTALS, 1)
