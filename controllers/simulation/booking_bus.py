"""Bookings from each simulated router to the others, numbered as in production.

Knows no placement: whoever sends says what. Times are in ms.
"""

from __future__ import annotations

from controllers.events import SCHEMA
from controllers.records import Booking, BookingBatch
from controllers.simulation.late import Late


class BookingBus:
    """`is_open` False: nobody tells anything."""

    def __init__(self, lag_ms: float, is_open: bool) -> None:
        self.late: Late[BookingBatch] = Late(lag_ms)
        self._is_open = is_open
        self._seqs: dict[int, int] = {}

    def tell(self, router: int, num_open: int, bookings: list[Booking], now: float) -> None:
        """Router number `router` has so many bookings under way, of which these have changed."""
        if not self._is_open:
            return
        seq = self._seqs.get(router, 0)
        self._seqs[router] = seq + 1
        batch = BookingBatch(
            schema=SCHEMA,
            ts_ms=int(now),
            router=router_name(router),
            seq=seq,
            num_open=num_open,
            bookings=bookings,
        )
        self.late.tell(router, batch, now)


def router_name(index: int) -> str:
    return f"router{index:03d}"
