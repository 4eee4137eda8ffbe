"""What the other routers have sent, exactly: their records -> what is booked on each worker.

Owns who the routers are, their open bookings, and what these come to by worker. Knows neither the
log nor costs, and not which workers there are: others may know of a new one first. `now` is in
seconds of one steady clock.

1. An entry says all of its booking, so a lost record costs nothing that the next entry of the same
   booking does not mend; a listing (once a second) mends the rest.
2. A router that is silent is gone, and its bookings with it.
3. Impossible entries are counted and change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from controllers.booking_sums import DONE, FIRST_TOKEN, SENT, BookingSums, Totals
from controllers.records import Booking, BookingBatch

# Several listings missed: it has ended, or the log does not reach this router.
SILENT_S = 5.0
MAX_COUNT = 10**9  # above this a figure is impossible
STATES = frozenset((SENT, FIRST_TOKEN, DONE))

# Worker whose totals changed -> ms of service booked there by others since, for the congestion
# price; below 0 if work took less than was booked.
Changes: TypeAlias = dict[str, float]


@dataclass(slots=True)
class _Listing:
    """The parts of a listing that have come."""

    num_parts: int
    ids: set[str] = field(default_factory=set)
    next_part: int = 0


@dataclass(slots=True)
class _Router:
    heard_at: float
    next_seq: int | None = None
    num_open: int = 0  # as it says
    bookings: dict[str, Booking] = field(default_factory=dict)
    listing: _Listing | None = None


class OtherRouters:
    """Counts since the start: `num_gaps` holes in a router's records, `num_bad` entries."""

    def __init__(self, own_id: str) -> None:
        self.num_gaps = 0
        self.num_bad = 0
        self.own_id = own_id
        self._routers: dict[str, _Router] = {}
        self._sums = BookingSums()

    def apply(self, batch: BookingBatch, now: float) -> Changes:
        """Take in one record; the router's own changes nothing."""
        if batch.router == self.own_id:
            return {}
        router = self._routers.get(batch.router)
        if router is None:
            router = self._routers[batch.router] = _Router(now)
        router.heard_at = now
        router.num_open = batch.num_open
        self._count_gap(router, batch.seq)
        changes: Changes = {}
        for booking in batch.bookings:
            if _is_possible(booking):
                self._put(router, booking, changes, is_news=not batch.num_parts)
            else:
                self.num_bad += 1
        self._list(router, batch, changes)
        return changes

    def sweep(self, now: float) -> Changes:
        """Forget silent routers."""
        changes: Changes = {}
        if not self._routers:
            return changes
        silent = [i for i, r in self._routers.items() if now - r.heard_at > SILENT_S]
        for router_id in silent:
            router = self._routers.pop(router_id)
            for request_id in list(router.bookings):
                self._drop(router, request_id, changes)
        return changes

    def forget_worker(self, worker: str) -> None:
        """It is gone, with what was booked there."""
        for router in self._routers.values():
            for request_id in [i for i, b in router.bookings.items() if b.worker == worker]:
                self._drop(router, request_id, {})

    def alive(self, now: float) -> list[str]:
        """Ids in order, the own one among them: its place is this router's place."""
        if not self._routers:
            return [self.own_id]
        heard = (i for i, r in self._routers.items() if now - r.heard_at <= SILENT_S)
        return sorted([self.own_id, *heard])

    def totals(self, worker: str) -> Totals:
        """What others have under way there."""
        return self._sums.totals(worker)

    def unstarted(self, worker: str) -> Mapping[int, tuple[int, int]]:
        """Rank -> others' requests that wait there for their first token, and their tokens."""
        return self._sums.unstarted(worker)

    def num_missing(self) -> int:
        """Bookings that routers say they have and that are not known, or the other way round."""
        return sum(abs(r.num_open - len(r.bookings)) for r in self._routers.values())

    def _count_gap(self, router: _Router, seq: int) -> None:
        if router.next_seq is not None and seq != router.next_seq:
            self.num_gaps += 1
            router.listing = None
        router.next_seq = seq + 1

    def _put(self, router: _Router, booking: Booking, changes: Changes, is_news: bool) -> None:
        """Service counts when it is booked, not when it is heard of later, in a listing; of a
        request so short that only its end is told, with that."""
        old = router.bookings.get(booking.request_id)
        if old == booking:
            return
        booked_ms = booking.service_ms
        if old is not None:
            self._drop(router, booking.request_id, changes)
            booked_ms -= old.service_ms if old.worker == booking.worker else 0.0
        if booking.state != DONE:
            router.bookings[booking.request_id] = booking
            self._sums.add(booking)
        worker = booking.worker
        changes[worker] = changes.get(worker, 0.0) + (booked_ms if is_news else 0.0)

    def _drop(self, router: _Router, request_id: str, changes: Changes) -> None:
        booking = router.bookings.pop(request_id)
        self._sums.remove(booking)
        changes.setdefault(booking.worker, 0.0)

    def _list(self, router: _Router, batch: BookingBatch, changes: Changes) -> None:
        """After the last part of a listing without a hole, what none of them named is over."""
        if batch.num_parts and batch.part == 0:
            router.listing = _Listing(batch.num_parts)
        listing = router.listing
        if listing is None:
            return
        if (batch.part, batch.num_parts) != (listing.next_part, listing.num_parts):
            router.listing = None
            return
        listing.ids.update(booking.request_id for booking in batch.bookings)
        listing.next_part += 1
        if listing.next_part == listing.num_parts:
            router.listing = None
            for request_id in router.bookings.keys() - listing.ids:
                self._drop(router, request_id, changes)


def _is_possible(booking: Booking) -> bool:
    return (
        booking.state in STATES
        and bool(booking.worker)
        and bool(booking.request_id)
        and 0 <= booking.prefill_tokens <= MAX_COUNT
        and 0 <= booking.num_blocks <= MAX_COUNT
        and math.isfinite(booking.service_ms)
        and 0.0 <= booking.service_ms <= MAX_COUNT
    )
