"""The books of one request: where it went, what was predicted, what happened.

Filled while the request runs; becomes the decision record. Does not decide anything. A prompt that
is computed in pieces is one request here: what was cached is what its first piece found, and its
decision the one by which that was sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from controllers.errors import Overloaded
from controllers.events import SCHEMA, hex_of
from controllers.handbacks import Handbacks
from controllers.pieces import Pieces
from controllers.placement import Sent
from controllers.records import Decision
from controllers.retention import Retention
from serve_app.executors.base import TokenChunk
from serve_app.fleet import Ask, Route


class Outcome:
    """One request; its attempts share it."""

    def __init__(self, ask: Ask, route: Route, clock: Callable[[], float]) -> None:
        self.ask = ask
        self.current = ask  # what the next attempt runs: the request, or what is left of it
        self.route = route
        self.status = ""  # ok, cancelled, refused or error, once it has ended
        self.refusal: Overloaded | None = None  # it gave way to another request
        self.interrupt: Callable[[], object] = _nothing  # ends the wait of whoever runs it
        self.failed_workers: set[str] = set()
        self.refused: set[str] = set()  # replicas that were full in this attempt
        self.planned: tuple[str, Retention] | None = None  # for the worker it went to last
        self.cached_tokens: int | None = None
        self.num_output_tokens = 0
        # What is under way now: so many leading tokens of the prompt; None: all of it.
        self.piece_tokens: int | None = None
        self.uncached_tokens = 0  # of that, as predicted
        self.max_ahead_tokens: int | None = None  # at its worker's gate
        self.handbacks = Handbacks()
        self._pieces = Pieces()
        self._num_left = ask.request.sampling.n
        self._clock = clock
        self.started_at = clock()
        self._attempt_at = self.started_at
        self._first_at: float | None = None
        self._waited_ms = 0.0  # in the router, and for those that handed it back
        self._sent_at = self.started_at
        self._queue_ms: float | None = None
        self._is_going_on = False  # a piece has ended, and nothing has been sent since
        self._was_going_on = False  # when what is under way was sent

    def on_sent(self, sent: Sent, waited_ms: float) -> None:
        """It, or a piece of it, goes to a worker, after waiting for that in the router."""
        placed = sent.placed
        self._waited_ms += waited_ms
        self.route.worker = placed.worker
        self.piece_tokens = sent.num_tokens
        num_tokens = self.current.num_tokens if sent.num_tokens is None else sent.num_tokens
        self.uncached_tokens = max(0, num_tokens - placed.predicted_cached_tokens)
        self.max_ahead_tokens = sent.max_ahead_tokens
        self.handbacks.forgive()
        self._sent_at = self._clock()
        self._was_going_on = self._is_going_on
        if self._is_going_on:
            self._is_going_on = False
            return
        self.route.reason = placed.reason
        self.route.predicted_cached_tokens = placed.predicted_cached_tokens
        self.route.best_cached_tokens = placed.best_cached_tokens
        self.route.predicted_ttft_ms = placed.predicted_ttft_ms
        self.route.num_candidates = placed.num_candidates
        self.route.num_attempts += 1

    def on_piece_end(self) -> None:
        """The piece under way is computed; the request waits again."""
        assert self.piece_tokens is not None, "a piece is under way"
        self._pieces.ended(self.piece_tokens)
        self.handbacks = Handbacks()
        self._is_going_on = True

    def on_handed_back(self) -> None:
        """What is under way was not started: too much came before it. It waits again."""
        now = self._clock()
        self.handbacks.add(self.route.worker, now)
        self._waited_ms += (now - self._sent_at) * 1e3
        self._is_going_on = self._was_going_on
        if not self._is_going_on:
            self.route.num_attempts -= 1

    def on_failed(self, is_refusal: bool) -> None:
        """What is under way failed on its worker, or was refused there. The next attempt goes
        elsewhere, and how long a failure took is not its fault."""
        self.failed_workers.add(self.route.worker)
        self._is_going_on = False
        self._pieces.begin_again()
        self.handbacks = Handbacks()
        if not is_refusal:
            self._attempt_at = self._clock()

    @property
    def num_pieces(self) -> int:
        """That have ended."""
        return self._pieces.num_ended

    @property
    def is_whole(self) -> bool:
        """Pieces of it leave nothing behind: it must go out whole."""
        return self._pieces.is_whole

    def on_chunk(self, chunk: TokenChunk) -> bool:
        """Book a chunk; True for the first one with a token (or an end)."""
        is_first = self._first_at is None
        if is_first:
            self._first_at = self._clock()
        if chunk.cached_tokens is not None:
            self.cached_tokens = chunk.cached_tokens
        if chunk.queue_ms is not None and self._queue_ms is None:
            self._queue_ms = chunk.queue_ms
        self.num_output_tokens += len(chunk.token_ids)
        self._num_left -= chunk.finish_reason is not None
        return is_first

    @property
    def has_started(self) -> bool:
        """Its first chunk came."""
        return self._first_at is not None

    def elapsed_ms(self) -> float:
        """Since the request came."""
        return (self._clock() - self.started_at) * 1e3

    def attempt_s(self) -> float:
        """Since it came, or since a worker failed it."""
        return self._clock() - self._attempt_at

    def refuse(self, why: Overloaded) -> None:
        """It has not started and must give way."""
        self.refusal = why
        self.interrupt()

    @property
    def is_complete(self) -> bool:
        """Every sequence has its last chunk."""
        return self._num_left <= 0

    def record(self, model: str) -> Decision:
        now = self._clock()
        first = self._first_at
        return Decision(
            schema=SCHEMA,
            ts_ms=time.time_ns() // 1_000_000,
            request_id=self.ask.request.request_id,
            model=model,
            request_type=self.ask.request_type,
            tenant=self.ask.tenant,
            worker=self.route.worker,
            reason=self.route.reason,
            num_candidates=self.route.num_candidates,
            prompt_tokens=self.ask.num_tokens,
            prompt_blocks=len(self.ask.hashes),
            predicted_cached_tokens=self.route.predicted_cached_tokens,
            best_cached_tokens=self.route.best_cached_tokens,
            cached_tokens=self.cached_tokens or 0,
            predicted_ttft_ms=round(self.route.predicted_ttft_ms, 3),
            ttft_ms=None if first is None else round((first - self.started_at) * 1e3, 3),
            queue_ms=None if self._queue_ms is None else self._waited_ms + self._queue_ms,
            total_ms=round((now - self.started_at) * 1e3, 3),
            output_tokens=self.num_output_tokens,
            num_attempts=self.route.num_attempts,
            status=self.status,
            prompt_hash=hex_of(self.ask.hashes[-1]) if self.ask.hashes else None,
            system_tokens=self.ask.spans.system_end,
            history_tokens=self.ask.spans.history_end,
            num_pieces=self.num_pieces,
        )


def _nothing() -> None:
    """Until somebody waits there is nothing to end."""
