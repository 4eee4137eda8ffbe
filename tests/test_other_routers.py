"""Records of other routers -> exact totals by worker, whatever gets lost on the way."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.booking_sums import NO_TOTALS, BookingSums, Totals
from controllers.events import SCHEMA
from controllers.other_routers import SILENT_S, Changes, OtherRouters
from controllers.records import Booking, BookingBatch


def booking(
    request_id: str = "q",
    state: str = "sent",
    worker: str = "a-0",
    prefill_tokens: int = 100,
    num_blocks: int = 4,
    rank: int = 0,
    service_ms: float = 50.0,
) -> Booking:
    return Booking(
        request_id=request_id,
        worker=worker,
        state=state,
        prefill_tokens=prefill_tokens,
        num_blocks=num_blocks,
        rank=rank,
        service_ms=service_ms,
    )


def record(
    seq: int,
    *bookings: Booking,
    router: str = "other",
    num_open: int = 0,
    part: int = 0,
    num_parts: int = 0,
) -> BookingBatch:
    return BookingBatch(
        schema=SCHEMA,
        ts_ms=0,
        router=router,
        seq=seq,
        num_open=num_open,
        bookings=list(bookings),
        part=part,
        num_parts=num_parts,
    )


def applied(*records: BookingBatch) -> OtherRouters:
    routers = OtherRouters("own")
    for batch in records:
        routers.apply(batch, 10.0)
    return routers


def test_a_booking_from_sent_to_done() -> None:
    routers = OtherRouters("own")
    assert routers.totals("a-0") == NO_TOTALS
    sent = booking(rank=2)
    assert routers.apply(record(0, sent, num_open=1), 1.0) == {"a-0": 50.0}
    assert routers.totals("a-0") == Totals(100, 1, 4, 1)
    assert routers.unstarted("a-0") == {2: (1, 100)}
    started = booking(state="first_token", rank=2, service_ms=30.0)
    assert routers.apply(record(1, started, num_open=1), 1.1) == {"a-0": -20.0}
    assert routers.totals("a-0") == Totals(0, 1, 4, 0)
    assert routers.unstarted("a-0") == {}
    done = booking(state="done", rank=2, service_ms=30.0)
    assert routers.apply(record(2, done), 1.2) == {"a-0": 0.0}
    assert routers.totals("a-0") == NO_TOTALS
    assert (routers.num_gaps, routers.num_bad, routers.num_missing()) == (0, 0, 0)


def test_routers_workers_and_ranks_add_up() -> None:
    routers = applied(
        record(0, booking("q"), booking("r", rank=3, prefill_tokens=7), num_open=2),
        record(0, booking("q", num_blocks=1), booking("s", worker="b-0"), router="x", num_open=2),
    )
    assert routers.totals("a-0") == Totals(207, 3, 9, 3)
    assert routers.unstarted("a-0") == {0: (2, 200), 3: (1, 7)}
    assert routers.totals("b-0") == Totals(100, 1, 4, 1)


def test_own_records_change_nothing() -> None:
    routers = applied(record(0, booking(), router="own"), record(5, booking(), router="own"))
    assert routers.totals("a-0") == NO_TOTALS
    assert routers.alive(10.0) == ["own"]
    assert routers.num_gaps == 0


def test_a_request_that_is_sent_elsewhere_moves() -> None:
    routers = applied(record(0, booking()))
    again = booking(worker="b-0", service_ms=20.0)
    assert routers.apply(record(1, again, num_open=1), 10.0) == {"a-0": 0.0, "b-0": 20.0}
    assert routers.totals("a-0") == NO_TOTALS
    assert routers.totals("b-0") == Totals(100, 1, 4, 1)


def test_an_entry_needs_none_before_it() -> None:
    """A router that starts late hears of the first token only."""
    routers = OtherRouters("own")
    started = booking(state="first_token", service_ms=30.0)
    assert routers.apply(record(17, started, num_open=1), 1.0) == {"a-0": 30.0}
    assert routers.totals("a-0") == Totals(0, 1, 4, 0)
    assert routers.num_gaps == 0


def test_a_request_of_which_only_the_end_is_told_counts_once() -> None:
    """Short ones are sent and done between two records."""
    routers = OtherRouters("own")
    done = booking(state="done", service_ms=3.0)
    assert routers.apply(record(0, done), 1.0) == {"a-0": 3.0}
    assert routers.totals("a-0") == NO_TOTALS
    assert routers.apply(record(1, num_parts=1), 1.1) == {}
    assert routers.num_missing() == 0


def test_a_listing_mends_what_was_lost_and_books_no_service_twice() -> None:
    routers = applied(record(0, booking("gone"), booking("q"), num_open=2))
    # Record 1 is lost: "gone" is done, "new" was sent.
    assert routers.apply(record(2, num_open=2), 10.0) == {}
    assert (routers.num_gaps, routers.num_missing()) == (1, 0)
    listing = record(3, booking("q"), booking("new", worker="b-0"), num_open=2, num_parts=1)
    assert routers.apply(listing, 10.0) == {"a-0": 0.0, "b-0": 0.0}
    assert routers.totals("a-0") == routers.totals("b-0") == Totals(100, 1, 4, 1)


def test_bookings_that_are_missing_are_known_to_be() -> None:
    routers = applied(record(4, booking("q"), num_open=3))
    assert routers.num_missing() == 2


def test_a_listing_in_parts_ends_with_its_last() -> None:
    routers = applied(record(0, booking("q"), booking("r"), booking("gone"), num_open=3))
    routers.apply(record(1, booking("q"), num_open=2, part=0, num_parts=2), 10.0)
    assert routers.totals("a-0").num_requests == 3
    routers.apply(record(2, booking("r"), num_open=2, part=1, num_parts=2), 10.0)
    assert routers.totals("a-0") == Totals(200, 2, 8, 2)


@pytest.mark.parametrize(
    "torn",
    [
        [record(3, booking("r"), part=1, num_parts=2)],  # record 2 was lost
        [record(2, booking("r")), record(3, booking("r"), part=1, num_parts=2)],
        [record(2, booking("r"), part=1, num_parts=3), record(3, booking("r"), part=2)],
    ],
    ids=["hole", "other", "sizes"],
)
def test_a_torn_listing_ends_nothing(torn: list[BookingBatch]) -> None:
    routers = applied(
        record(0, booking("q"), booking("r"), booking("s")),
        record(1, booking("q"), part=0, num_parts=2),
        *torn,
    )
    assert routers.totals("a-0").num_requests == 3
    routers.apply(record(4, booking("s"), num_open=1, num_parts=1), 10.0)
    assert routers.totals("a-0") == Totals(100, 1, 4, 1)


def test_a_silent_router_is_forgotten_with_its_bookings() -> None:
    routers = OtherRouters("own")
    routers.apply(record(0, booking("q"), router="silent", num_open=1), 0.0)
    routers.apply(record(0, booking("q"), router="x", num_open=1), 1.0)
    assert routers.alive(SILENT_S) == ["own", "silent", "x"]
    assert routers.sweep(SILENT_S) == {}
    assert routers.alive(SILENT_S + 0.5) == ["own", "x"]
    assert routers.sweep(SILENT_S + 0.5) == {"a-0": 0.0}
    assert routers.totals("a-0") == Totals(100, 1, 4, 1)
    # It comes back: nothing of before counts, not even its numbers.
    routers.apply(record(9, booking("r"), router="silent", num_open=1), 20.0)
    assert routers.alive(20.0) == ["own", "silent"]
    assert (routers.num_gaps, routers.totals("a-0").num_requests) == (0, 2)
    assert routers.sweep(math.inf) == {"a-0": 0.0}
    assert routers.totals("a-0") == NO_TOTALS


def test_a_worker_that_is_gone_is_forgotten() -> None:
    routers = applied(record(0, booking("q"), booking("r", worker="b-0"), num_open=2))
    routers.forget_worker("a-0")
    assert routers.totals("a-0") == NO_TOTALS
    assert routers.totals("b-0") == Totals(100, 1, 4, 1)
    routers.apply(record(1, booking("q", state="done"), num_open=1), 10.0)
    assert routers.totals("a-0") == NO_TOTALS
    assert (routers.num_bad, routers.num_missing()) == (0, 0)


@pytest.mark.parametrize(
    "bad",
    [
        booking(prefill_tokens=-1),
        booking(prefill_tokens=10**10),
        booking(num_blocks=-1),
        booking(num_blocks=10**10),
        booking(service_ms=-0.1),
        booking(service_ms=math.nan),
        booking(service_ms=math.inf),
        booking(state="paused"),
        booking(worker=""),
        booking(request_id=""),
    ],
)
def test_an_impossible_entry_changes_nothing(bad: Booking) -> None:
    routers = applied(record(0, booking("r"), num_open=1))
    good = booking("s", worker="b-0")
    assert routers.apply(record(1, bad, good, num_open=2), 10.0) == {"b-0": 50.0}
    assert routers.totals("a-0") == Totals(100, 1, 4, 1)
    assert (routers.num_bad, routers.num_gaps, routers.num_missing()) == (1, 0, 0)


def test_an_impossible_entry_of_a_listing_keeps_what_was_known() -> None:
    routers = applied(record(0, booking("q"), num_open=1))
    routers.apply(record(1, booking("q", prefill_tokens=-5), num_open=1, num_parts=1), 10.0)
    assert routers.totals("a-0") == Totals(100, 1, 4, 1)


def test_sums_leave_no_trace() -> None:
    sums = BookingSums()
    sums.add(booking())
    sums.remove(booking())
    assert (sums.totals("a-0"), sums.unstarted("a-0"), sums._sums) == (NO_TOTALS, {}, {})


class Teller:
    """A router as simple as can be: all its bookings, and a record of whatever changed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seq = 0
        self.open: dict[str, Booking] = {}
        self.changed: dict[str, Booking] = {}

    def tell(self, is_listing: bool) -> BookingBatch:
        bookings = self.open if is_listing else self.changed
        batch = record(
            self.seq,
            *bookings.values(),
            router=self.name,
            num_open=len(self.open),
            num_parts=int(is_listing),
        )
        self.seq += 1
        self.changed = {}
        return batch

    def change(self, request_id: str, worker: str, tokens: int, rank: int) -> None:
        """A new booking is sent, a sent one starts, a started one ends."""
        old = self.open.get(request_id)
        if old is None:
            new = booking(request_id, "sent", worker, tokens, 1 + tokens // 32, rank, float(tokens))
        elif old.state == "sent":
            new = booking(
                request_id, "first_token", old.worker, old.prefill_tokens, old.num_blocks, old.rank
            )
        else:
            new = booking(
                request_id, "done", old.worker, old.prefill_tokens, old.num_blocks, old.rank
            )
        self.changed[request_id] = new
        if new.state == "done":
            del self.open[request_id]
        else:
            self.open[request_id] = new


def naive_totals(bookings: Iterable[Booking], worker: str) -> Totals:
    here = [b for b in bookings if b.worker == worker]
    waiting = [b for b in here if b.state == "sent"]
    return Totals(
        sum(b.prefill_tokens for b in waiting),
        len(here),
        sum(b.num_blocks for b in here),
        len(waiting),
    )


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("change"),
            st.sampled_from("xyz"),
            st.sampled_from("qrstu"),
            st.sampled_from(["a-0", "b-0"]),
            st.integers(0, 5000),
            st.integers(0, 2),
        ),
        st.tuples(st.just("tell"), st.sampled_from("xyz"), st.booleans(), st.booleans()),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_after_a_listing_of_each_router_totals_are_the_truth(
    steps: list[tuple[object, ...]],
) -> None:
    """Whatever was told, lost or half told before."""
    tellers = {name: Teller(name) for name in "xyz"}
    routers = OtherRouters("own")
    total_changes: Changes = {}
    for step in steps:
        teller = tellers[str(step[1])]
        if step[0] == "change":
            teller.change(*step[2:])  # type: ignore[arg-type]
            continue
        batch = teller.tell(is_listing=bool(step[2]))
        if not step[3]:  # not lost
            known = {w: routers.totals(w) for w in ("a-0", "b-0")}
            changes = routers.apply(batch, 0.0)
            unchanged = {w for w in known if routers.totals(w) == known[w]}
            assert {"a-0", "b-0"} - unchanged <= changes.keys()
            for worker, ms in changes.items():
                total_changes[worker] = total_changes.get(worker, 0.0) + ms
    assert all(math.isfinite(ms) for ms in total_changes.values())
    for teller in tellers.values():
        routers.apply(teller.tell(is_listing=True), 0.0)
    truth = [b for teller in tellers.values() for b in teller.open.values()]
    for worker in ("a-0", "b-0"):
        assert routers.totals(worker) == naive_totals(truth, worker)
    assert routers.num_missing() == 0


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_without_losses_totals_are_the_truth_at_once(steps: list[tuple[object, ...]]) -> None:
    tellers = {name: Teller(name) for name in "xyz"}
    told: dict[str, list[Booking]] = {}
    routers = OtherRouters("own")
    for step in steps:
        teller = tellers[str(step[1])]
        if step[0] == "change":
            teller.change(*step[2:])  # type: ignore[arg-type]
            continue
        routers.apply(teller.tell(is_listing=bool(step[2])), 0.0)
        told[teller.name] = list(teller.open.values())
        truth = [b for bookings in told.values() for b in bookings]
        for worker in ("a-0", "b-0"):
            assert routers.totals(worker) == naive_totals(truth, worker)
    assert (routers.num_gaps, routers.num_missing()) == (0, 0)
