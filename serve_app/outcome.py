"""The books of one request: where it went, what was predicted, what happened.

Filled while the request runs; becomes the decision record. Does not decide anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from controllers.errors import Overloaded
from controllers.events import SCHEMA, Decision, hex_of
from controllers.placement import Placed
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
        self.cached_tokens: int | None = None
        self.num_output_tokens = 0
        self._num_left = ask.request.sampling.n
        self._clock = clock
        self._started_at = clock()
        self._first_at: float | None = None
        self._queue_ms: float | None = None

    def on_placed(self, placed: Placed) -> None:
        self.route.worker = placed.worker
        self.route.reason = placed.reason
        self.route.predicted_cached_tokens = placed.predicted_cached_tokens
        self.route.best_cached_tokens = placed.best_cached_tokens
        self.route.predicted_ttft_ms = placed.predicted_ttft_ms
        self.route.num_candidates = placed.num_candidates
        self.route.num_attempts += 1

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
        return (self._clock() - self._started_at) * 1e3

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
            ttft_ms=None if first is None else round((first - self._started_at) * 1e3, 3),
            queue_ms=self._queue_ms,
            total_ms=round((now - self._started_at) * 1e3, 3),
            output_tokens=self.num_output_tokens,
            num_attempts=self.route.num_attempts,
            status=self.status,
            prompt_hash=hex_of(self.ask.hashes[-1]) if self.ask.hashes else None,
            system_tokens=self.ask.spans.system_end,
            history_tokens=self.ask.spans.history_end,
        )


def _nothing() -> None:
    """Until somebody waits there is nothing to end."""
