"""The steps of placing one request: who may take it in time, who does, and the books of it.

Owns what sent requests teach about prefixes: predictions, hubs, blind placement. When a request is
sent says `dispatch`. `now` is in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from random import Random

import numpy as np

from controllers.baselines import pick_least_requests, pick_random, pick_round_robin
from controllers.blind import BlindPlacement
from controllers.candidates import Candidates, epoch_of
from controllers.choice import Choice, Chooser, spare_ms
from controllers.costs import Costs, Service
from controllers.errors import Overloaded
from controllers.evictions import Evictions
from controllers.hubs import Hubs
from controllers.ledger import Booking, Ledger
from controllers.numbers import Floats
from controllers.placement_types import Losses, Placed, PlacementSettings, Query, TableView
from controllers.predictions import Predictions
from controllers.ranking import Ranker
from controllers.stagger import stagger_ms


class Placing:
    """`max_running`: requests that a worker runs together. `losses` None: nothing is lost."""

    def __init__(
        self,
        ledger: Ledger,
        settings: PlacementSettings,
        rng: Random,
        max_running: float,
        losses: Losses | None = None,
    ) -> None:
        self.ledger = ledger
        self._losses = losses
        self._books = ledger.books
        self._rng = rng
        self._max_running = max_running
        self._blind = BlindPlacement()
        self._evictions = Evictions()
        self._num_placed = 0
        self.configure(settings)

    def configure(self, settings: PlacementSettings) -> None:
        """New preferences; what is predicted now is forgotten."""
        self._settings = settings
        self.predictions = Predictions(settings.route_ttl_s)
        self.ranker = Ranker(self.ledger, self.predictions, settings, self._max_running)
        self._hubs = Hubs(settings.prefix_copy_ratio)
        self._chooser = Chooser(self._rng, self._hubs, self._blind)

    def rank(
        self, query: Query, table: TableView, now: float, exclude: Collection[str]
    ) -> tuple[Candidates, Costs]:
        """Raises NotReady."""
        found = self.ranker.find(query, table, now, exclude)
        return found, self.ranker.price_one(query, found, table.block_size, now)

    def stagger_ms(self, now: float) -> Floats | None:
        """What each worker costs more from this router's place; None: there is no other router."""
        ledger = self.ledger
        routers = ledger.others.alive(now)
        if len(routers) == 1:
            return None
        place = routers.index(ledger.others.own_id)
        return stagger_ms(self._books.workers, place, len(routers), self._full_ms())

    def in_time(self, found: Candidates, costs: Costs, left_ms: float) -> Candidates:
        """Those that could answer within `left_ms`. Raises Overloaded if there are none.

        An idle worker is in time whatever is predicted: waiting would not make it sooner, and only
        work corrects a curve that is wrong.
        """
        books, rows = self._books, found.rows
        ttft_ms = (costs.start_ms + costs.service_ms)[rows]
        in_time = rows[books.is_free()[rows] | (ttft_ms <= left_ms)]
        if not len(in_time):
            earliest_ms = float(ttft_ms.min())
            raise Overloaded(
                f"the first token is expected in {earliest_ms:.0f} ms on the best of {len(rows)} "
                f"workers; {left_ms:g} ms are allowed",
                (earliest_ms - left_ms) / 1000.0,
            )
        return found._replace(rows=in_time)

    def choose(
        self,
        query: Query,
        table: TableView,
        found: Candidates,
        costs: Costs,
        extra_ms: Floats | None,
        now: float,
    ) -> Choice:
        """The cheapest one, with `extra_ms` by row, unless a policy or the request decides."""
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
        lost_ms = self.lost_ms(query, now)
        if lost_ms is not None:
            found = found._replace(lost_ms=lost_ms)
        for more_ms in (extra_ms, lost_ms, self._eviction_ms(costs, now)):
            if more_ms is not None:
                costs = costs._replace(cost_ms=costs.cost_ms + more_ms)
        choice = self._chooser.choose(query, table, found, costs, books, now * 1000.0)
        if extra_ms is None or choice.is_blind:
            return choice
        return choice._replace(spare_ms=spare_ms(choice.row, found.rows, costs))

    def max_ahead_tokens(self, choice: Choice, shared_start_tokens: int) -> int | None:
        """To prefill at the chosen worker before a request that is sent now: if there are more,
        another one is the better choice. What shares a start does not keep it waiting. None: as
        many as there are."""
        if math.isinf(choice.spare_ms):
            return None
        on = self._books.at(choice.row)
        ahead = on.prefill_tokens + on.shared_tokens + max(0.0, float(on.others_prefill_tokens))
        return int(ahead + shared_start_tokens + choice.spare_ms / self._ms_per_token())

    def lost_ms(self, query: Query, now: float) -> Floats | None:
        """By row of the books: work of later requests. None: there is none."""
        weight = self._settings.loss_weight
        if self._losses is None or query.prompt_use is None or not weight:
            return None
        lost_tokens = self._losses.lost_tokens(query.prompt_use, now)
        if not lost_tokens:
            return None
        by_row = np.array([lost_tokens.get(worker, 0.0) for worker in self._books.workers])
        return by_row * (weight * self._ms_per_token())

    def _eviction_ms(self, costs: Costs, now: float) -> Floats | None:
        """By row of the books: the work of computing again what a smaller cache loses sooner for
        these blocks. None: caches are alike, or nothing is lost."""
        smaller = self._books.smaller
        if smaller is None:
            return None
        share = self._evictions.share_again()
        if not share:
            return None
        price = self.ranker.busy_price.at(self._books.busy(now * 1000.0))
        return costs.uncached_tokens * smaller * price * (share * self._ms_per_token())

    def _ms_per_token(self) -> float:
        """At the price of full iterations on a usual worker."""
        return self._full_ms() / self.ledger.model.max_batched_tokens

    def _full_ms(self) -> float:
        """A full iteration on a usual worker."""
        model = self.ledger.model
        return float(model.prefill_ms(model.max_batched_tokens, 0.0, 1.0))

    def reserve(
        self,
        query: Query,
        table: TableView,
        found: Candidates,
        service: Service,
        choice: Choice,
        now: float,
    ) -> None:
        """It is sent: it counts on its worker from now on."""
        row, worker = choice.row, self._books.workers[choice.row]
        booking = Booking(
            worker=worker,
            request_type=query.request_type,
            uncached_tokens=service.uncached_tokens,
            num_blocks=-(-query.num_tokens // table.block_size),
            service_ms=service.ms,
            rank=query.rank,
            hashes=query.hashes,
            num_cached=int(found.cached_blocks[row]),
        )
        self.ledger.reserve(query.request_id, booking, now)
        self._num_placed += 1
        depth, epoch = int(found.overlap_blocks[row]), epoch_of(table, worker)
        self.predictions.add(worker, epoch, query.hashes, depth, now)
        self._blind.remember(query.hashes, worker, choice.is_blind)
        self._note_branch(query, found, choice, table.block_size)
        if self._books.smaller is not None and not query.is_again:
            self._evictions.add(query.hashes, found.best_blocks, now)

    def take_back(self, request_id: str, now: float) -> None:
        """Its worker has not started it, and will not: what it was to compute is not expected there
        any more. Unknown ids change nothing."""
        booking = self.ledger.booking(request_id)
        if booking is not None:
            self.predictions.retract(booking.worker, booking.hashes, booking.num_cached)
            self.ledger.release(request_id, now)

    def placed(
        self, query: Query, table: TableView, found: Candidates, costs: Costs, choice: Choice
    ) -> Placed:
        """The decision in words."""
        row, size = choice.row, table.block_size
        return Placed(
            worker=self._books.workers[row],
            reason=choice.reason,
            predicted_cached_tokens=min(query.num_tokens, int(found.cached_blocks[row]) * size),
            best_cached_tokens=min(query.num_tokens, found.best_blocks * size),
            predicted_ttft_ms=float(costs.start_ms[row] + costs.service_ms[row]),
            num_candidates=len(found.rows),
            predicted_service_ms=float(costs.service_ms[row]),
        )

    def _note_branch(
        self, query: Query, found: Candidates, choice: Choice, block_size: int
    ) -> None:
        depth = found.best_blocks
        if not 0 < depth < len(query.hashes):
            return
        end = query.hashes[depth - 1]
        if choice.is_copy:
            self._hubs.copied(end)
        elif not query.is_again:
            self._hubs.leave(end, query.num_tokens - depth * block_size)
