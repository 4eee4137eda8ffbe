"""What bookings come to on each worker, kept as they come and go. Whole numbers: nothing drifts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from controllers.records import Booking

SENT = "sent"
FIRST_TOKEN = "first_token"
DONE = "done"


class Totals(NamedTuple):
    """Of the open bookings of one worker."""

    prefill_tokens: int  # of those that wait for their first token
    num_requests: int
    num_blocks: int
    num_unstarted: int  # that wait for their first token


NO_TOTALS = Totals(0, 0, 0, 0)


@dataclass(slots=True)
class _Sums:
    num_requests: int = 0
    num_blocks: int = 0
    # Of what has not started: rank -> (requests, tokens), without ranks that have none.
    unstarted: dict[int, tuple[int, int]] = field(default_factory=dict)


class BookingSums:
    """By worker; workers without bookings take no room."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sums] = {}

    def add(self, booking: Booking) -> None:
        self._change(booking, 1)

    def remove(self, booking: Booking) -> None:
        """One that was added and not removed."""
        self._change(booking, -1)

    def totals(self, worker: str) -> Totals:
        sums = self._sums.get(worker)
        if sums is None:
            return NO_TOTALS
        requests, tokens = 0, 0
        for of_rank in sums.unstarted.values():
            requests += of_rank[0]
            tokens += of_rank[1]
        return Totals(tokens, sums.num_requests, sums.num_blocks, requests)

    def unstarted(self, worker: str) -> Mapping[int, tuple[int, int]]:
        """Rank -> requests that wait for their first token, and their tokens."""
        sums = self._sums.get(worker)
        return {} if sums is None else sums.unstarted

    def _change(self, booking: Booking, sign: int) -> None:
        sums = self._sums.get(booking.worker)
        if sums is None:
            sums = self._sums[booking.worker] = _Sums()
        sums.num_requests += sign
        sums.num_blocks += sign * booking.num_blocks
        if booking.state == SENT:
            _change_rank(sums.unstarted, booking, sign)
        if not sums.num_requests:
            del self._sums[booking.worker]


def _change_rank(unstarted: dict[int, tuple[int, int]], booking: Booking, sign: int) -> None:
    requests, tokens = unstarted.get(booking.rank, (0, 0))
    if requests + sign:
        unstarted[booking.rank] = (requests + sign, tokens + sign * booking.prefill_tokens)
    else:
        del unstarted[booking.rank]
