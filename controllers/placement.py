"""Which worker takes a request, and when: rank, choose and reserve in one synchronous step.

The table of what workers hold, the clock and the members of the fleet come from outside. `now` is
in seconds of any steady clock.

1. Cost is milliseconds (see `costs`); what iterations cost is fitted online (see `cost_model`).
2. A request waits here until the worker that it should go to can start it (see `dispatch`); it is
   counted on that worker from then until it is released.
3. What is unknown is said: the reason of a decision names staleness and cold caches.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from random import Random
from typing import Any

import msgspec
import numpy as np

from controllers.candidates import Candidates
from controllers.cost_model import CostModel
from controllers.costs import Costs
from controllers.dispatch import Dispatcher, ExcludeOf
from controllers.events import Load
from controllers.ledger import Ledger
from controllers.placement_types import Candidate as Candidate
from controllers.placement_types import Losses as Losses
from controllers.placement_types import Placed as Placed
from controllers.placement_types import PlacementSettings as PlacementSettings
from controllers.placement_types import Query as Query
from controllers.placement_types import Refused as Refused
from controllers.placement_types import Sent as Sent
from controllers.placement_types import TableView as TableView
from controllers.placing import Placing
from controllers.records import BookingBatch
from controllers.starting import rules_of


class Placement:
    """One router's decisions for one deployment, whose workers are of one kind."""

    def __init__(
        self,
        settings: PlacementSettings,
        model: CostModel,
        rng: Random,
        max_running: float = math.inf,
        router_id: str = "",
        losses: Losses | None = None,
    ) -> None:
        """`max_running`: requests that a worker runs together. `router_id`: under which the other
        routers know this one. `losses`: asked about requests with a `prompt_use`."""
        self._settings = settings
        self._max_running = max_running
        self._ledger = Ledger(model, router_id)
        self._books = self._ledger.books
        self._placing = Placing(self._ledger, settings, rng, max_running, losses)
        rules = rules_of(settings, model.max_batched_tokens, max_running)
        self._dispatcher = Dispatcher(self._placing, rules)

    def configure(self, settings: PlacementSettings) -> None:
        """New preferences. Reservations stay and whoever waits; what is predicted is forgotten."""
        self._settings = settings
        self._placing.configure(settings)
        self._dispatcher.rules = rules_of(
            settings, self._ledger.model.max_batched_tokens, self._max_running
        )

    @property
    def num_reserved(self) -> int:
        """Requests that were placed and neither released nor expired."""
        return len(self._ledger)

    @property
    def num_waiting(self) -> int:
        """Requests that were submitted and neither sent nor refused nor released."""
        return len(self._dispatcher)

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
            self._placing.predictions.forget(worker)

    def forget(self, worker: str) -> None:
        """The worker is gone, with its reservations and what was predicted of it."""
        self._ledger.forget(worker)
        self._placing.predictions.forget(worker)

    def on_load(self, worker: str, load: Load, now: float) -> None:
        """A load record as the worker sent it; impossible figures are handled here."""
        self._ledger.report(worker, load, now)

    def on_bookings(self, batch: BookingBatch, now: float) -> None:
        """What another router has sent, seen the first token of, or finished."""
        self._ledger.on_bookings(batch, now)

    def forget_others(self, now: float) -> None:
        """Nobody tells of other routers any more: this one is alone."""
        self._ledger.forget_others(now)

    def choose(
        self, query: Query, table: TableView, now: float, exclude: Collection[str] = ()
    ) -> Placed:
        """Choose a worker and reserve at once, whether it can start the request or not. A second
        call with the same id moves the reservation.

        Raises NotReady, with nothing reserved, if every worker is excluded or none is known;
        Overloaded if its first token would be late on every one of them.
        """
        self.release(query.request_id, now)
        self.sweep(now)
        placing = self._placing
        found, costs = placing.rank(query, table, now, exclude)
        if query.max_ttft_ms is not None:
            found = placing.in_time(found, costs, query.max_ttft_ms)
        choice = placing.choose(query, table, found, costs, placing.stagger_ms(now), now)
        placed = placing.placed(query, table, found, costs, choice)
        placing.reserve(query, table, found, costs.service_at(choice.row), choice, now)
        return placed

    def explain(self, query: Query, table: TableView, now: float) -> dict[str, Any]:
        """What `choose` would do now, as plain values: the fields of Placed, and `candidates`, a
        list with the fields of Candidate, cheapest first. Reserves nothing. Raises NotReady."""
        placing = self._placing
        found, costs = placing.rank(query, table, now, ())
        choice = placing.choose(query, table, found, costs, placing.stagger_ms(now), now)
        placed = placing.placed(query, table, found, costs, choice)
        lost_ms = placing.lost_ms(query, now)
        if lost_ms is not None:
            found = found._replace(lost_ms=lost_ms)
            costs = costs._replace(cost_ms=costs.cost_ms + lost_ms)
        rows = found.rows[np.argsort(costs.cost_ms[found.rows], kind="stable")].tolist()
        busy = self._books.busy(now * 1000.0)
        backlog_ms = placing.ranker.backlog_ms(query.rank, table.block_size, now)
        candidates = [
            self._candidate(table, found, costs, busy[row], backlog_ms[row], row) for row in rows
        ]
        return {**msgspec.to_builtins(placed), "candidates": msgspec.to_builtins(candidates)}

    def first_token(self, request_id: str, now: float) -> None:
        """Its prefill is done. Unknown ids and second calls change nothing."""
        self._ledger.first_token(request_id, now)

    def release(self, request_id: str, now: float, output_tokens: int = 0) -> None:
        """The request has left its worker, or waits no longer. Unknown ids change nothing."""
        self._dispatcher.remove(request_id)
        self._ledger.release(request_id, now, output_tokens)

    def take_back(self, request_id: str, now: float) -> None:
        """Its worker has handed it back unstarted. Unknown ids change nothing."""
        self._placing.take_back(request_id, now)

    def sweep(self, now: float) -> None:
        """End what nobody has released, and predictions of the past. `choose` does it too."""
        self._placing.predictions.sweep(now)
        self._ledger.sweep_others(now)
        self._ledger.expire(now - self._settings.reservation_ttl_s, now)

    def submit(self, query: Query, now: float, since_s: float | None = None) -> None:
        """Let it wait for `run`. `since_s`: when it came, if that was earlier."""
        self._ledger.release(query.request_id, now)
        self._dispatcher.submit(query, now if since_s is None else since_s)

    def run(
        self, table: TableView, now: float, exclude_of: ExcludeOf = lambda query: ()
    ) -> list[Sent | Refused]:
        """One pass over what waits: who is sent now, and who cannot be (NotReady, Overloaded).
        Everybody else goes on waiting. To be called after `submit` and whenever something has
        changed, at `wake_s` at the latest. `exclude_of`: workers that may not take a request."""
        if not len(self._dispatcher):
            return []
        self.sweep(now)
        return self._dispatcher.run(table, now, exclude_of)

    def wake_s(self, now: float) -> float | None:
        """When to `run` at the latest; None: nobody waits."""
        return self._dispatcher.wake_s(now)

    def _candidate(
        self,
        table: TableView,
        found: Candidates,
        costs: Costs,
        busy: float,
        backlog_ms: float,
        row: int,
    ) -> Candidate:
        books, worker = self._books, self._books.workers[row]
        return Candidate(
            worker=worker,
            overlap_blocks=int(found.overlap_blocks[row]),
            predicted_blocks=int(found.cached_blocks[row]),
            is_stale=table.is_stale(worker),
            num_requests=float(
                books.num_requests[row]
                + books.shared_requests[row]
                + max(0.0, books.others_requests[row])
            ),
            busy=float(busy),
            backlog_ms=float(backlog_ms),
            start_ms=float(costs.start_ms[row]),
            service_ms=float(costs.service_ms[row]),
            lost_ms=0.0 if found.lost_ms is None else float(found.lost_ms[row]),
            cost_ms=float(costs.cost_ms[row]),
        )
