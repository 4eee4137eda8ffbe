"""Requests that this router has sent and that have not ended, and what workers say of their load.

Owns reservations, books, the timing curve and what finished requests were like. Chooses nothing.
`now` is in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from controllers.books import Books
from controllers.completions import Completions
from controllers.cost_model import CostModel
from controllers.events import Load
from controllers.other_routers import Changes, OtherRouters
from controllers.rank_book import RankBook
from controllers.records import BookingBatch
from controllers.steady_loads import SteadyLoads

UNKNOWN_REFERENCE_BLOCKS = 65_536


class Booking(NamedTuple):
    """What a request takes on its worker."""

    worker: str
    request_type: str
    uncached_tokens: float
    num_blocks: int  # of the prompt
    service_ms: float
    rank: int = 0
    hashes: Sequence[int] = ()
    num_cached: int = 0  # of these blocks, expected to be there already


@dataclass(slots=True)
class _Reservation:
    booking: Booking
    booked_at: float
    first_at: float | None = None


class Ledger:
    """`num_expired` counts reservations that nobody released. `router_id`: the own one."""

    def __init__(self, model: CostModel, router_id: str = "") -> None:
        self.model = model
        self.others = OtherRouters(router_id)
        self.books = Books()
        self.steady_loads = SteadyLoads(self.books, model)
        self.rank_book = RankBook()
        self.completions = Completions()
        self.num_expired = 0
        self._reservations: dict[str, _Reservation] = {}  # oldest first
        self._reference_blocks = 0  # 0: no worker has said how many it has

    def __len__(self) -> int:
        return len(self._reservations)

    @property
    def reference_blocks(self) -> int:
        """What shares of blocks are shares of: the capacity of the first worker."""
        return self._reference_blocks or UNKNOWN_REFERENCE_BLOCKS

    def set_workers(self, worker_to_blocks: Mapping[str, int]) -> list[str]:
        """Returns the workers that are new in no longer being listed; they are forgotten."""
        gone = [w for w in self.books.workers if w not in worker_to_blocks]
        for worker in gone:
            self.forget(worker)
        for worker, num_blocks in worker_to_blocks.items():
            row = self._row_of(worker)
            if num_blocks > 0:
                self.books.set_capacity(row, num_blocks)
                self._refer_to(num_blocks)
        return gone

    def forget(self, worker: str) -> None:
        """The worker is gone, with its reservations."""
        self.books.forget(worker)
        self.rank_book.forget(worker)
        self.others.forget_worker(worker)
        self.model.forget(worker)
        lost = [i for i, r in self._reservations.items() if r.booking.worker == worker]
        for request_id in lost:
            del self._reservations[request_id]

    def report(self, worker: str, load: Load, now: float) -> None:
        """Take in a load record, as the worker sent it."""
        row = self.books.row(worker)
        if row is None:
            return
        self.books.report(row, load, now * 1000.0)
        self.rank_book.report(worker, load.queued_by_rank, now * 1000.0)
        capacity = float(self.books.capacity_blocks[row])
        if math.isfinite(capacity):
            self._refer_to(int(capacity))
        for iteration in load.iterations:
            self.model.observe(worker, iteration, self.reference_blocks)
        self.books.set_speed(row, self.model.speed(worker))

    def on_bookings(self, batch: BookingBatch, now: float) -> None:
        """Take in what another router has sent."""
        self._share(self.others.apply(batch, now), now)

    def sweep_others(self, now: float) -> None:
        """Forget what routers had that have fallen silent."""
        self._share(self.others.sweep(now), now)

    def forget_others(self, now: float) -> None:
        """Nobody tells of other routers any more."""
        self._share(self.others.sweep(math.inf), now)

    def reserve(self, request_id: str, booking: Booking, now: float) -> None:
        """The worker is known and the id is not reserved."""
        row = self._row_of(booking.worker)
        self.books.book(
            row, booking.uncached_tokens, booking.num_blocks, booking.service_ms, now * 1000.0
        )
        self.rank_book.book(booking.worker, booking.rank, booking.uncached_tokens)
        self._reservations[request_id] = _Reservation(booking, now)

    def booking(self, request_id: str) -> Booking | None:
        reservation = self._reservations.get(request_id)
        return None if reservation is None else reservation.booking

    def first_token(self, request_id: str, now: float) -> None:
        """Its prefill is done. Unknown ids and second calls change nothing."""
        reservation = self._reservations.get(request_id)
        if reservation is not None and reservation.first_at is None:
            reservation.first_at = now
            self._end_prefill(reservation, now)

    def release(self, request_id: str, now: float, output_tokens: int = 0) -> None:
        """It has left its worker, however it ended. Unknown ids change nothing."""
        reservation = self._reservations.pop(request_id, None)
        if reservation is None:
            return
        booking = reservation.booking
        if reservation.first_at is None:
            self._end_prefill(reservation, now)
        elif output_tokens > 0:
            held_ms = (now - reservation.first_at) * 1000.0
            self.completions.add(booking.request_type, output_tokens, held_ms)
        row = self.books.row(booking.worker)
        if row is not None:
            self.books.end(row, booking.num_blocks)

    def expire(self, booked_before: float, now: float) -> None:
        """Release what was reserved at or before that time."""
        expired: list[str] = []
        for request_id, reservation in self._reservations.items():
            if reservation.booked_at > booked_before:
                break
            expired.append(request_id)
        for request_id in expired:
            self.release(request_id, now)
        self.num_expired += len(expired)

    def _refer_to(self, num_blocks: int) -> None:
        self._reference_blocks = self._reference_blocks or num_blocks

    def _end_prefill(self, reservation: _Reservation, now: float) -> None:
        """The worker's backlog is estimated anew, from what is still booked there. Work that was
        done sooner than booked, as before the curve is known, is booked for as long as it took."""
        booking = reservation.booking
        row = self.books.row(booking.worker)
        if row is None:
            return
        self.books.start(row, booking.uncached_tokens)
        self.rank_book.book(booking.worker, booking.rank, booking.uncached_tokens, -1)
        unused_ms = booking.service_ms - (now - reservation.booked_at) * 1000.0
        if unused_ms > 0.0:
            self.books.charge(row, -unused_ms, now * 1000.0)
        self._estimate_ends(row, now * 1000.0)

    def _share(self, changes: Changes, now: float) -> None:
        """New work of others comes after what is there; when a prefill of theirs has ended, the
        worker's backlog is estimated anew."""
        now_ms, books = now * 1000.0, self.books
        for worker, service_ms in changes.items():
            row = books.row(worker)
            if row is None:
                continue
            tokens = float(books.shared_tokens[row])
            self._take_totals(row, worker, service_ms, now_ms)
            if service_ms > 0.0 and books.shared_tokens[row] > tokens:
                books.prefill_end_ms[row] = max(books.prefill_end_ms[row], now_ms) + service_ms
            elif books.shared_tokens[row] < tokens:
                self._estimate_ends(row, now_ms)

    def _row_of(self, worker: str) -> int:
        """The worker's row. Others may have work on a new one already."""
        known = self.books.row(worker)
        if known is not None:
            return known
        row = self.books.add(worker)
        self._take_totals(row, worker, 0.0, 0.0)
        return row

    def _take_totals(self, row: int, worker: str, service_ms: float, now_ms: float) -> None:
        totals = self.others.totals(worker)
        self.books.share(
            row, totals.prefill_tokens, totals.num_requests, totals.num_blocks, service_ms, now_ms
        )
        self.rank_book.share(worker, self.others.unstarted(worker))

    def _estimate_ends(self, row: int, now_ms: float) -> None:
        """From everybody's prefill that has not ended, and from the own one."""
        books = self.books
        own, shared = float(books.prefill_tokens[row]), float(books.shared_tokens[row])
        own_ms = self._prefill_ms(row, own)
        books.own_prefill_end_ms[row] = now_ms + own_ms
        all_ms = self._prefill_ms(row, own + shared) if shared > 0.0 else own_ms
        books.prefill_end_ms[row] = now_ms + all_ms

    def _prefill_ms(self, row: int, num_tokens: float) -> float:
        if num_tokens <= 0.0:
            return 0.0
        speed = float(self.books.speed[row])
        share = float(self.books.at(row).active_blocks()) / self.reference_blocks
        decode_ms = self.model.decode_ms(share, speed)
        return float(self.model.prefill_ms(num_tokens, decode_ms, speed))
