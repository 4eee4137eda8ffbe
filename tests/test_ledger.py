"""What a request books on its worker, and what it gives back when it was quicker."""

from __future__ import annotations

import pytest

from controllers import events, records
from controllers.booking_sums import DONE
from controllers.cost_model import CostModel
from controllers.ledger import Booking, Ledger

BOOKING = Booking("a-0", "interactive", uncached_tokens=100.0, num_blocks=4, service_ms=200.0)


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger(CostModel())
    ledger.set_workers({"a-0": 1000})
    ledger.reserve("q", BOOKING, 10.0)
    return ledger


def booked_ms(ledger: Ledger, now: float) -> float:
    return float(ledger.books.booked(now * 1000.0)[0])


def test_work_done_sooner_is_booked_for_as_long_as_it_took(ledger: Ledger) -> None:
    ledger.first_token("q", 10.005)
    assert booked_ms(ledger, 10.005) == pytest.approx(5.0, abs=0.1)
    ledger.release("q", 10.5, output_tokens=3)
    assert booked_ms(ledger, 10.005) == pytest.approx(5.0, abs=0.1)


def test_work_that_took_longer_stays_as_booked(ledger: Ledger) -> None:
    ledger.first_token("q", 10.3)
    assert booked_ms(ledger, 10.0) == pytest.approx(200.0)


def test_a_request_that_left_before_its_first_token_gives_back_too(ledger: Ledger) -> None:
    ledger.release("q", 10.05)
    assert booked_ms(ledger, 10.05) == pytest.approx(50.0, abs=1.0)


def test_anothers_request_whose_end_alone_is_told_is_booked_and_over(ledger: Ledger) -> None:
    end_ms = float(ledger.books.prefill_end_ms[0])
    done = records.Booking(
        request_id="r",
        worker="a-0",
        state=DONE,
        prefill_tokens=10,
        num_blocks=1,
        service_ms=3.0,
    )
    batch = records.BookingBatch(
        schema=events.SCHEMA, ts_ms=0, router="other", seq=0, num_open=0, bookings=[done]
    )
    before_ms = booked_ms(ledger, 10.0)
    ledger.on_bookings(batch, 10.0)
    assert booked_ms(ledger, 10.0) == pytest.approx(before_ms + 3.0)
    assert float(ledger.books.prefill_end_ms[0]) == end_ms
