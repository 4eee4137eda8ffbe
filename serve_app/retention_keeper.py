"""The learned retention policy in an ingress process: its lock, its clock, its requests under way.

Learns from the requests of this process, from those of the other ingresses if there are any, and
from what the log says was removed. Plans when a request's worker is known, as promises are bounded
by the room on that worker. Does not decide what is kept (`controllers.learned_retention`) or
whether the policy is used: a request without `Ask.prompt_use` keeps the retention that it came
with.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from controllers.events import PrefixUse, ints_of
from controllers.learned_retention import LearnedRetention
from controllers.prompt_use import PromptUse
from controllers.refusals import Refusals
from controllers.retention import Retention
from controllers.retention_plans import RetentionPlans
from controllers.shared_uses import SharedUses, UseRecords
from infra.event_bus_base import Bus, Topics
from infra.settings import Settings
from serve_app.outcome import Outcome
from serve_app.use_exchange import UseExchange


class RetentionKeeper:
    """Called by the event loop, the table feed's thread and the exchange's. `router`: its id."""

    def __init__(
        self, settings: Settings, bus: Bus, router: str, clock: Callable[[], float]
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._topic = Topics(settings.kafka.topic_prefix).uses
        self._lock = threading.Lock()
        self._learned = LearnedRetention()
        self._refusals = Refusals(self._learned)
        self._shared = SharedUses(self._learned, router, settings.executor.block_size)
        self._records = UseRecords(router)
        self._exchange: UseExchange | None = None
        self._plans = RetentionPlans(self._learned)  # the event loop's

    def configure(self, settings: Settings) -> None:
        """Ingresses tell each other only if several of them learn."""
        is_shared = settings.retention.policy == "learned" and settings.http.num_ingress > 1
        if is_shared and self._exchange is None:
            self._exchange = self.open_exchange()
            self._exchange.start()
        elif not is_shared:
            self.close()

    def open_exchange(self) -> UseExchange:
        """Without its thread: whoever calls its `turn` is the thread."""
        return UseExchange(self._bus, self._topic, self._heard, self._clock)

    def close(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None

    def set_workers(self, num_blocks: dict[str, int]) -> None:
        with self._lock:
            self._learned.set_workers(num_blocks)

    def retention(self, outcome: Outcome, now: float) -> Retention:
        """For the worker that the request goes to now; after a failure, for the next one. Pieces of
        a prompt that go to one worker are parts of one plan."""
        ask, worker = outcome.ask, outcome.route.worker
        if ask.prompt_use is None:
            return ask.request.retention
        request_id = ask.request.request_id
        known = self._plans.current(request_id, worker)
        if known is not None:
            return known
        with self._lock:
            plan = self._plans.make(request_id, ask.prompt_use, worker, now)
        if self._exchange is not None:
            self._exchange.publish(self._records.planned(request_id, plan, _wall_ms()))
        return plan.retention

    def finished(self, outcome: Outcome, now: float) -> None:
        """Of a request that came to no worker there is nothing to learn."""
        request_id, cached = outcome.ask.request.request_id, outcome.cached_tokens
        use = outcome.ask.prompt_use
        if use is None:
            return
        num_blocks = None if cached is None else cached // use.block_size
        with self._lock:
            plan = self._plans.end(request_id, num_blocks, now)
        if plan is not None and self._exchange is not None:
            self._exchange.publish(
                self._records.done(request_id, plan.worker, num_blocks, _wall_ms())
            )

    def removed(self, worker: str, hexes: Sequence[str], now: float) -> None:
        """The log says so."""
        if not self._learned.num_blocks:
            return
        hashes = ints_of(hexes)
        with self._lock:
            self._refusals.removed(worker, hashes, now)
            self._learned.removed(worker, hashes, now)

    def lost_tokens(self, prompt: PromptUse, now: float) -> dict[str, float]:
        """What placement asks when it chooses: by worker, of the prompt, expected to be computed
        again for want of room to keep it."""
        with self._lock:
            return self._refusals.lost_tokens(prompt, now)

    def tick(self, now: float) -> None:
        """At least once a second, apart from the requests."""
        with self._lock:
            self._learned.fit_if_due(now)
            self._shared.give_up(now)

    def describe(self) -> dict[str, Any]:
        """Part of the JSON of GET /fleet."""
        exchange = self._exchange
        with self._lock:
            return {
                "remembered_blocks": self._learned.num_blocks,
                "is_shared": exchange is not None,
                "others": {
                    **asdict(self._shared.counters),
                    "num_running": self._shared.num_running,
                    "num_bad": exchange.num_bad if exchange else 0,
                    "num_unsent": exchange.num_unsent if exchange else 0,
                },
            }

    def _heard(self, record: PrefixUse, at: float) -> None:
        with self._lock:
            self._shared.apply(record, at)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
