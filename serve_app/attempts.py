"""A request between its beginning and its end: where it is sent, what goes there, what came of it.

Owns no request: they are the routing state's. Serve's router places them, the fleet tells what
happened; where one goes says `placer`, who may not take it the request and the gates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from controllers.errors import NotReady, Overloaded
from controllers.placement import Query, Sent
from controllers.retention import Retention
from infra.settings import Settings
from serve_app.calls import encoded_call
from serve_app.entrance import Entrance
from serve_app.fleet import Ask
from serve_app.members import replica_of
from serve_app.membership import Membership
from serve_app.outcome import Outcome
from serve_app.placer import Placer
from serve_app.retention_keeper import RetentionKeeper


class Attempts:
    """`in_flight` by request id. `num_pieces`: of prompts, that were computed. `num_handed_back`:
    requests or pieces, each as often as a worker did it."""

    def __init__(
        self,
        settings: Settings,
        in_flight: Mapping[str, Outcome],
        placer: Placer,
        entrance: Entrance,
        retention: RetentionKeeper,
        members: Membership,
        clock: Callable[[], float],
    ) -> None:
        self.settings = settings
        self.num_pieces = 0
        self.num_handed_back = 0
        self._in_flight = in_flight
        self._placer = placer
        self._entrance = entrance
        self._retention = retention
        self._members = members
        self._clock = clock

    async def place(self, request_id: str) -> str:
        """Wait until the request, or a piece of it, should go to a worker, and reserve; the replica
        id. Raises NotReady when nobody is left who may take it, Overloaded when all gates are full
        or none can be in time."""
        outcome = self._in_flight[request_id]
        since_s = self._clock()
        sent = await self._send(outcome)
        outcome.on_sent(sent, (self._clock() - since_s) * 1e3)
        return replica_of(sent.placed.worker)

    def excluded(self, query: Query) -> set[str]:
        """Workers that may not take a request now. Raises Overloaded if all gates are full."""
        outcome = self._in_flight.get(query.request_id)
        if outcome is None:
            raise NotReady(f"request {query.request_id!r} has left")
        excluded = self._members.workers_of(outcome.refused) | outcome.failed_workers
        left = set(self._members.workers()) - excluded
        excluded |= self._entrance.full_gates(outcome.ask, left)
        now, left = self._clock(), left - excluded
        left -= self._placer.suspects.among(left, now)
        return excluded | outcome.handbacks.avoided(left, now)

    def refused(self, request_id: str) -> set[str]:
        """Replicas that were full; the router's note, which lives as long as the request."""
        return self._in_flight[request_id].refused

    def replica_of(self, request_id: str) -> str:
        return replica_of(self._in_flight[request_id].route.worker)

    def encode_call(self, request_id: str) -> bytes:
        """What the chosen replica receives."""
        outcome = self._in_flight[request_id]
        return encoded_call(
            outcome,
            self.settings.tiers.rule(outcome.ask.tier),
            self._planned(outcome),
            self._entrance.weight_of(outcome.ask.tenant),
            self._entrance.ttft_left_ms(outcome),
            self.settings.http.num_ingress > 1,
        )

    def failed(self, request_id: str, is_refusal: bool = False) -> None:
        """The worker of this attempt failed; the next attempt must go elsewhere.

        So do other requests for a while, unless it only refused.
        """
        outcome = self._in_flight[request_id]
        outcome.on_failed(is_refusal)
        if is_refusal:
            self._entrance.gate_refused(outcome)
            self._placer.release(request_id)
        else:
            self._placer.failed(request_id, outcome.route.worker)

    def handed_back(self, request_id: str) -> None:
        """Its worker has not started it, as too much came before it; it is to be placed again."""
        self._in_flight[request_id].on_handed_back()
        self.num_handed_back += 1
        self._placer.take_back(request_id)

    def first_token(self, request_id: str) -> None:
        outcome = self._in_flight[request_id]
        self._placer.first_token(request_id, outcome.route.worker)
        self._entrance.started(outcome)

    def piece_ended(self, request_id: str) -> None:
        """Its worker has computed the piece; the rest is to be placed."""
        outcome = self._in_flight[request_id]
        outcome.on_piece_end()
        self.num_pieces += 1
        self._placer.first_token(request_id, outcome.route.worker)
        self._placer.release(request_id)

    async def _send(self, outcome: Outcome) -> Sent:
        """Nobody is refused because of a worker that is only avoided."""
        try:
            return await self._placer.send(self._query(outcome), outcome.started_at)
        except Overloaded:
            if not outcome.handbacks.is_choosy:
                raise
        outcome.handbacks.forgive()
        return await self._placer.send(self._query(outcome), outcome.started_at)

    def _query(self, outcome: Outcome) -> Query:
        ask = outcome.current
        return msgspec.structs.replace(
            query_of(ask),
            weight=self._entrance.weight_of(ask.tenant),
            max_ttft_ms=self._entrance.max_ttft_ms(outcome),
            is_whole=outcome.is_whole,
            is_again=outcome.handbacks.num > 0,
            is_settled=outcome.handbacks.num >= self.settings.routing.max_handbacks,
        )

    def _planned(self, outcome: Outcome) -> Retention:
        """What its worker shall keep. All pieces of a prompt on one worker are one use of it."""
        worker, before = outcome.route.worker, outcome.planned
        if before is not None and before[0] == worker and outcome.num_pieces:
            return before[1]
        retention = self._retention.retention(outcome, self._clock())
        outcome.planned = worker, retention
        return retention


def query_of(ask: Ask) -> Query:
    return Query(
        request_id=ask.request.request_id,
        hashes=ask.hashes,
        num_tokens=ask.num_tokens,
        rank=ask.request.service_rank,
        tenant=ask.tenant,
        request_type=ask.request_type,
        expected_output_tokens=None,
        pinned=ask.pinned_worker,
        prompt_use=ask.prompt_use,
    )
