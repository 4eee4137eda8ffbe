"""The learned retention policy in an ingress process: its lock, its clock, its requests under way.

Learns from the requests of this process and from what the log says was removed. Plans when a
request's worker is known, as promises are bounded by the room on that worker. Does not decide what
is kept (`controllers.learned_retention`) or whether the policy is used: a request without
`Ask.prompt_use` keeps the retention that it came with.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from controllers.events import ints_of
from controllers.learned_retention import LearnedRetention, Use
from controllers.retention import Retention
from serve_app.outcome import Outcome


class RetentionKeeper:
    """Called by the event loop and by the table feed's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._learned = LearnedRetention()
        self._uses: dict[str, Use] = {}

    def set_workers(self, num_blocks: dict[str, int]) -> None:
        with self._lock:
            self._learned.set_workers(num_blocks)

    def retention(self, outcome: Outcome, now: float) -> Retention:
        """For the worker that the request goes to now; after a failure, for the next one."""
        ask = outcome.ask
        if ask.prompt_use is None:
            return ask.request.retention
        with self._lock:
            use = self._uses.get(ask.request.request_id)
            if use is None:
                use = self._learned.use(ask.prompt_use, now)
                self._uses[ask.request.request_id] = use
            return self._learned.promise(use, outcome.route.worker, now)

    def finished(self, outcome: Outcome, now: float) -> None:
        """Of a request that came to no worker there is nothing to learn."""
        with self._lock:
            use = self._uses.pop(outcome.ask.request.request_id, None)
            if use is not None:
                cached = outcome.cached_tokens
                num_blocks = None if cached is None else cached // use.prompt.block_size
                self._learned.finished(use, num_blocks, now)

    def removed(self, worker: str, hexes: Sequence[str], now: float) -> None:
        """The log says so."""
        if not self._learned.num_blocks:
            return
        hashes = ints_of(hexes)
        with self._lock:
            self._learned.removed(worker, hashes, now)

    def tick(self, now: float) -> None:
        """At least once a second, apart from the requests."""
        with self._lock:
            self._learned.fit_if_due(now)
