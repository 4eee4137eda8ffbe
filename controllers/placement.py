"""Which worker takes a request: rank, choose and reserve in one synchronous step.

The table of what workers hold, the clock and the members of the fleet come from outside. `now` is
in seconds of any steady clock.

1. Cost is milliseconds (see `costs`); what iterations cost is fitted online (see `cost_model`).
2. A request is placed at once. It is counted on its worker from then until it is released.
3. What is unknown is said: the reason of a decision names staleness and cold caches.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from random import Random
from typing import Any

import msgspec
import numpy as np

from controllers.baselines import pick_least_requests, pick_random, pick_round_robin
from controllers.blind import BlindPlacement
from controllers.candidates import Candidates, epoch_of, find_candidates
from controllers.choice import Choice, Chooser
from controllers.cost_model import CostModel
from controllers.costs import Costs, Weights, Work, cost_of
from controllers.errors import NotReady, Overloaded
from controllers.events import Load
from controllers.hubs import Hubs
from controllers.ledger import Booking, Ledger
from controllers.placement_types import Candidate as Candidate
from controllers.placement_types import Placed as Placed
from controllers.placement_types import PlacementSettings as PlacementSettings
from controllers.placement_types import Query as Query
from controllers.placement_types import TableView as TableView
from controllers.predictions import Predictions


class Placement:
    """One router's decisions for one deployment, whose workers are of one kind."""

    def __init__(
        self,
        settings: PlacementSettings,
        model: CostModel,
        rng: Random,
        max_running: float = math.inf,
    ) -> None:
        """`max_running`: requests that a worker runs together."""
        self._rng = rng
        self._max_running = max_running
        self._ledger = Ledger(model)
        self._books = self._ledger.books
        self._blind = BlindPlacement()
        self._num_placed = 0
        self.configure(settings)

    def configure(self, settings: PlacementSettings) -> None:
        """New preferences. Reservations stay; what is predicted now is forgotten."""
        self._settings = settings
        self._predictions = Predictions(settings.route_ttl_s)
        self._hubs = Hubs(settings.prefix_copy_ratio)
        self._chooser = Chooser(self._rng, self._hubs, self._blind)

    @property
    def num_reserved(self) -> int:
        """Requests that were placed and neither released nor expired."""
        return len(self._ledger)

    @property
    def num_expired(self) -> int:
        """Reservations that nobody released within `reservation_ttl_s`."""
        return self._ledger.num_expired

    @property
    def num_bad_figures(self) -> int:
        """Impossible figures in load records."""
        return self._books.num_bad_figures + self._ledger.model.num_bad_samples

    def set_workers(self, worker_to_blocks: Mapping[str, int]) -> None:
        """The workers that may take requests, with the blocks of their first medium (0: unknown).
        Workers that are down, draining or gone are left out, and forgotten."""
        for worker in self._ledger.set_workers(worker_to_blocks):
            self._predictions.forget(worker)

    def forget(self, worker: str) -> None:
        """The worker is gone, with its reservations and what was predicted of it."""
        self._ledger.forget(worker)
        self._predictions.forget(worker)

    def on_load(self, worker: str, load: Load, now: float) -> None:
        """A load record as the worker sent it; impossible figures are handled here."""
        self._ledger.report(worker, load, now)

    def choose(
        self, query: Query, table: TableView, now: float, exclude: Collection[str] = ()
    ) -> Placed:
        """Choose a worker and reserve. A second call with the same id moves the reservation.

        Raises NotReady, with nothing reserved, if every worker is excluded or none is known;
        Overloaded if its first token would be late on every one of them.
        """
        self._ledger.release(query.request_id, now)
        self.sweep(now)
        found, costs = self._rank(query, table, now, exclude)
        found = self._in_time(query, found, costs)
        choice = self._choose(query, table, found, costs, now)
        placed = self._placed(query, table, found, costs, choice)
        self._reserve(query, table, found, costs, choice, now)
        return placed

    def explain(self, query: Query, table: TableView, now: float) -> dict[str, Any]:
        """What `choose` would do now, as plain values: the fields of Placed, and `candidates`, a
        list with the fields of Candidate, cheapest first. Reserves nothing. Raises NotReady."""
        found, costs = self._rank(query, table, now, ())
        choice = self._choose(query, table, found, costs, now)
        placed = self._placed(query, table, found, costs, choice)
        rows = found.rows[np.argsort(costs.cost_ms[found.rows], kind="stable")].tolist()
        busy = self._books.busy(now * 1000.0)
        candidates = [self._candidate(table, found, costs, busy[row], row) for row in rows]
        return {**msgspec.to_builtins(placed), "candidates": msgspec.to_builtins(candidates)}

    def first_token(self, request_id: str, now: float) -> None:
        """Its prefill is done. Unknown ids and second calls change nothing."""
        self._ledger.first_token(request_id, now)

    def release(self, request_id: str, now: float, output_tokens: int = 0) -> None:
        """The request has left its worker, however it ended. Unknown ids change nothing."""
        self._ledger.release(request_id, now, output_tokens)

    def sweep(self, now: float) -> None:
        """End what nobody has released, and predictions of the past. `choose` does it too."""
        self._predictions.sweep(now)
        self._ledger.expire(now - self._settings.reservation_ttl_s, now)

    def _rank(
        self, query: Query, table: TableView, now: float, exclude: Collection[str]
    ) -> tuple[Candidates, Costs]:
        found = find_candidates(query, table, self._books, self._predictions, exclude, now)
        if not len(found.rows):
            raise NotReady(f"none of {len(self._books)} workers can take the request")
        settings, completions = self._settings, self._ledger.completions
        expected: float | None = query.expected_output_tokens
        if expected is None:
            expected = completions.expected_tokens(query.request_type)
        work = Work(
            num_tokens=query.num_tokens,
            block_size=table.block_size,
            cached_blocks=found.cached_blocks,
            onboard_ms=found.lower_blocks * settings.host_onboard_ms_per_block,
            output_tokens=expected,
        )
        weights = Weights(
            settings.beta,
            settings.theta,
            completions.held_ms,
            completions.output_tokens,
            self._max_running,
        )
        reference, model = self._ledger.reference_blocks, self._ledger.model
        passed = self._ledger.rank_book.passed_by(query.rank, self._books.workers)
        return found, cost_of(work, self._books, model, reference, weights, now * 1000.0, passed)

    def _in_time(self, query: Query, found: Candidates, costs: Costs) -> Candidates:
        """An idle worker is in time whatever is predicted: waiting would not make it sooner, and
        only work corrects a curve that is wrong."""
        if query.max_ttft_ms is None:
            return found
        books, rows = self._books, found.rows
        ttft_ms = (costs.start_ms + costs.service_ms)[rows]
        is_idle = (books.num_requests[rows] == 0) & (books.others_requests[rows] < 0.5)
        in_time = rows[is_idle | (ttft_ms <= query.max_ttft_ms)]
        if not len(in_time):
            earliest_ms = float(ttft_ms.min())
            raise Overloaded(
                f"the first token is expected in {earliest_ms:.0f} ms on the best of {len(rows)} "
                f"workers; {query.max_ttft_ms:g} ms are allowed",
                (earliest_ms - query.max_ttft_ms) / 1000.0,
            )
        return found._replace(rows=in_time)

    def _choose(
        self, query: Query, table: TableView, found: Candidates, costs: Costs, now: float
    ) -> Choice:
        books, rows = self._books, found.rows
        pinned = books.row(query.pinned) if query.pinned is not None else None
        if pinned is not None and pinned in rows:
            return Choice(pinned, "pinned")
        if self._settings.policy == "random":
            return Choice(pick_random(rows, self._rng), "policy")
        if self._settings.policy == "round_robin":
            return Choice(pick_round_robin(rows, self._num_placed), "policy")
        if self._settings.policy == "least_requests":
            return Choice(pick_least_requests(rows, books.num_requests, self._rng), "load")
        return self._chooser.choose(query, table, found, costs, books, now * 1000.0)

    def _reserve(
        self,
        query: Query,
        table: TableView,
        found: Candidates,
        costs: Costs,
        choice: Choice,
        now: float,
    ) -> None:
        row, worker = choice.row, self._books.workers[choice.row]
        booking = Booking(
            worker=worker,
            request_type=query.request_type,
            uncached_tokens=float(costs.uncached_tokens[row]),
            num_blocks=-(-query.num_tokens // table.block_size),
            service_ms=float(costs.service_ms[row]),
            rank=query.rank,
        )
        self._ledger.reserve(query.request_id, booking, now)
        self._num_placed += 1
        depth, epoch = int(found.overlap_blocks[row]), epoch_of(table, worker)
        self._predictions.add(worker, epoch, query.hashes, depth, now)
        self._blind.remember(query.hashes, worker, choice.is_blind)
        self._note_branch(query, found, choice, table.block_size)

    def _note_branch(
        self, query: Query, found: Candidates, choice: Choice, block_size: int
    ) -> None:
        depth = found.best_blocks
        if not 0 < depth < len(query.hashes):
            return
        end = query.hashes[depth - 1]
        if choice.is_copy:
            self._hubs.copied(end)
        else:
            self._hubs.leave(end, query.num_tokens - depth * block_size)

    def _placed(
        self, query: Query, table: TableView, found: Candidates, costs: Costs, choice: Choice
    ) -> Placed:
        row, size = choice.row, table.block_size
        return Placed(
            worker=self._books.workers[row],
            reason=choice.reason,
            predicted_cached_tokens=min(query.num_tokens, int(found.cached_blocks[row]) * size),
            best_cached_tokens=min(query.num_tokens, found.best_blocks * size),
            predicted_ttft_ms=float(costs.start_ms[row] + costs.service_ms[row]),
            num_candidates=len(found.rows),
        )

    def _candidate(
        self, table: TableView, found: Candidates, costs: Costs, busy: float, row: int
    ) -> Candidate:
        books, worker = self._books, self._books.workers[row]
        return Candidate(
            worker=worker,
            overlap_blocks=int(found.overlap_blocks[row]),
            predicted_blocks=int(found.cached_blocks[row]),
            is_stale=table.is_stale(worker),
            num_requests=float(books.num_requests[row] + max(0.0, books.others_requests[row])),
            busy=float(busy),
            backlog_ms=float(costs.backlog_ms[row]),
            start_ms=float(costs.start_ms[row]),
            service_ms=float(costs.service_ms[row]),
            cost_ms=float(costs.cost_ms[row]),
        )
