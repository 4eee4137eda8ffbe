"""What a router of a simulated fleet is, and one that follows the formula of a peer.

A router knows the table, load records and what it sent itself. The fleet tells it first tokens and
ends at once. Times are in ms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple, Protocol

from controllers.events import Load
from controllers.predictions import Predictions
from controllers.records import BookingBatch
from controllers.simulation.peers import Formula, Sight
from controllers.simulation.prompt_blocks import PrefixTable, PromptBlocks
from controllers.simulation.trace import Request

PEER_PREDICTIONS_S = 5.0  # as Dynamo's --router-predicted-ttl-secs


class Sent(NamedTuple):
    """Request `number` goes to `worker` now. `uncached_tokens`: what the router expects it to
    compute. `piece_tokens`: only so many leading tokens of it; None: all. `max_ahead_tokens`: see
    `controllers.waiting`."""

    number: int
    worker: str
    uncached_tokens: int
    piece_tokens: int | None = None
    max_ahead_tokens: float = math.inf


class Refused(NamedTuple):
    """Request `number` waited, and cannot be sent any more; the router has forgotten it."""

    number: int


class Router(Protocol):
    """`needs_loads`: it reads load records."""

    needs_loads: bool

    @property
    def num_waiting(self) -> int:
        """Requests that it has not sent anywhere yet."""
        ...

    def set_workers(self, worker_to_blocks: Mapping[str, int]) -> None:
        """Those that may take requests. What was sent to others is forgotten."""
        ...

    def submit(self, request: Request, now: float) -> None:
        """It came, or has to run again or elsewhere, or a piece of it has ended."""
        ...

    def decide(self, now: float) -> Sequence[Sent | Refused]:
        """Who goes where now, and who cannot. There is a worker."""
        ...

    def wake_ms(self, now: float) -> float:
        """When to decide at the latest; inf: when something happens."""
        ...

    def first_token(self, request: Request, now: float) -> None: ...

    def release(self, request: Request, now: float, output_tokens: int) -> None:
        """It has left its worker, or waits no longer. Requests that were forgotten change
        nothing."""
        ...

    def handed_back(self, request: Request, now: float) -> None:
        """Its worker has not started it, as too much came before it; it waits again."""
        ...

    def on_load(self, worker: str, load: Load, now: float) -> None: ...

    def on_bookings(self, batch: BookingBatch, now: float) -> None:
        """Another router has told what it sent."""
        ...

    def beat(self, now: float) -> None:
        """Called once in a while: say that it is there, if anybody wants to know."""
        ...


class EngineView(Protocol):
    """What peers know of engines without asking the log."""

    def num_in_use(self, worker: str, request: Request) -> int:
        """Leading blocks of the prompt that running requests use there."""
        ...

    def used_share(self, worker: str) -> float:
        """Of the worker's blocks, in use by running requests."""
        ...


class _Booking(NamedTuple):
    worker: str
    uncached_tokens: int
    num_blocks: int


class _Book:
    """What this router has at one worker."""

    def __init__(self) -> None:
        self.queued_tokens = 0
        self.num_requests = 0
        self.prompt_blocks = 0


class PeerRouter:
    """A formula, with exact bookkeeping of what this router sent.

    `predicts`: blocks of a sent prompt count for some seconds before the log tells of them; of use
    only where the log is late or loses records.
    """

    needs_loads = False

    def __init__(
        self,
        formula: Formula,
        table: PrefixTable,
        engines: EngineView,
        rng: Random,
        per: int,
        predicts: bool,
    ) -> None:
        self._formula = formula
        self._table = table
        self._engines = engines
        self._rng = rng
        self._per = per
        self._predictions = Predictions(PEER_PREDICTIONS_S) if predicts else None
        self._books: dict[str, _Book] = {}
        self._unstarted: dict[int, _Booking] = {}
        self._bookings: dict[int, _Booking] = {}
        self._num_sent = 0
        self._waiting: list[Request] = []

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def set_workers(self, worker_to_blocks: Mapping[str, int]) -> None:
        for worker in [w for w in self._books if w not in worker_to_blocks]:
            if self._predictions is not None:
                self._predictions.forget(worker)
        self._books = {w: self._books.get(w) or _Book() for w in worker_to_blocks}
        for bookings in (self._unstarted, self._bookings):
            for index in [i for i, b in bookings.items() if b.worker not in self._books]:
                del bookings[index]

    def submit(self, request: Request, now: float) -> None:
        self._waiting.append(request)

    def decide(self, now: float) -> list[Sent]:
        """All, in the order in which they came."""
        waiting, self._waiting = self._waiting, []
        return [self._place(request, now) for request in waiting]

    def wake_ms(self, now: float) -> float:
        return math.inf

    def _place(self, request: Request, now: float) -> Sent:
        workers = list(self._books)
        matched = self._matched(request, workers, now / 1000.0)
        sight = self._sight(request, workers, matched)
        costs = self._formula(sight)
        least = min(costs)
        best = [i for i, cost in enumerate(costs) if cost <= least + 1e-9]
        i = best[0] if len(best) == 1 else self._rng.choice(best)
        self._book(request, workers[i], sight.uncached_tokens(i))
        self._predict(request, workers[i], matched[i], now / 1000.0)
        return Sent(request.number, workers[i], sight.uncached_tokens(i))

    def first_token(self, request: Request, now: float) -> None:
        booking = self._unstarted.pop(request.number, None)
        if booking is not None:
            self._books[booking.worker].queued_tokens -= booking.uncached_tokens

    def release(self, request: Request, now: float, output_tokens: int) -> None:
        self.first_token(request, now)
        booking = self._bookings.pop(request.number, None)
        if booking is not None:
            book = self._books[booking.worker]
            book.num_requests -= 1
            book.prompt_blocks -= booking.num_blocks

    def handed_back(self, request: Request, now: float) -> None:
        """Nothing of a peer's is."""

    def on_load(self, worker: str, load: Load, now: float) -> None:
        pass

    def on_bookings(self, batch: BookingBatch, now: float) -> None:
        pass

    def beat(self, now: float) -> None:
        pass

    def _book(self, request: Request, worker: str, uncached_tokens: int) -> None:
        num_blocks = -(-request.num_tokens // self._table.block_size)
        booking = _Booking(worker, uncached_tokens, num_blocks)
        self._unstarted[request.number] = self._bookings[request.number] = booking
        book = self._books[worker]
        book.queued_tokens += uncached_tokens
        book.num_requests += 1
        book.prompt_blocks += booking.num_blocks
        self._num_sent += 1

    def _predict(self, request: Request, worker: str, num_blocks: int, now_s: float) -> None:
        if self._predictions is not None:
            hashes = PromptBlocks(request.trace_blocks, request.num_blocks, self._per)
            self._predictions.add(worker, None, hashes, num_blocks, now_s)

    def _matched(self, request: Request, workers: Sequence[str], now_s: float) -> list[int]:
        hashes = PromptBlocks(request.trace_blocks, request.num_blocks, self._per)
        found = self._table.overlap(hashes)
        matched = [found[w].num_blocks if w in found else 0 for w in workers]
        if self._predictions is None:
            return matched
        self._predictions.sweep(now_s)
        return [
            self._predictions.extend(worker, None, hashes, num, now_s)
            for worker, num in zip(workers, matched, strict=True)
        ]

    def _sight(self, request: Request, workers: Sequence[str], matched: list[int]) -> Sight:
        books = [self._books[w] for w in workers]
        engines = self._engines
        has_shared = self._formula.needs_shared
        return Sight(
            num_tokens=request.num_tokens,
            block_size=self._table.block_size,
            num_before=self._num_sent,
            matched_blocks=matched,
            queued_tokens=[book.queued_tokens for book in books],
            num_requests=[book.num_requests for book in books],
            prompt_blocks=[book.prompt_blocks for book in books],
            shared_blocks=[engines.num_in_use(w, request) for w in workers] if has_shared else [],
            used_share=[engines.used_share(w) for w in workers],
        )
