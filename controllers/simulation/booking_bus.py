"""The way of bookings from each simulated router to the others: late, and never lost.

Knows no placement: whoever sends says what, whoever hears is called. Times are in ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from controllers.events import SCHEMA, Booking, BookingBatch

OnBookings: TypeAlias = Callable[[BookingBatch, float], None]


class BookingBus:
    """Router `i` is told by `listeners[i]`; `is_open` False: nobody tells anything."""

    def __init__(self, lag_ms: float, is_open: bool) -> None:
        self.listeners: Sequence[OnBookings] = ()
        self._lag_ms = lag_ms
        self._is_open = is_open
        self._seqs: dict[int, int] = {}
        self._on_the_way: deque[tuple[float, int, BookingBatch]] = deque()

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
        self._on_the_way.append((now + self._lag_ms, router, batch))

    def deliver(self, now: float) -> None:
        """Everything that has arrived by now."""
        on_the_way = self._on_the_way
        while on_the_way and on_the_way[0][0] <= now:
            at, router, batch = on_the_way.popleft()
            for index, listener in enumerate(self.listeners):
                if index != router:
                    listener(batch, at)


def router_name(index: int) -> str:
    return f"router{index:03d}"
