"""The learned retention policy in an ingress process: its lock, its clock, its exchange.

What is learned and planned is `controllers.router_retention`'s; here it is told of the requests of
this process, of those of the other ingresses if there are any, and of what the log says was
removed. Does not decide whether the policy is used: a request without `Ask.prompt_use` keeps the
retention that it came with.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from controllers.events import ints_of
from controllers.prompt_use import PromptUse
from controllers.records import PrefixUse
from controllers.retention import Retention
from controllers.router_retention import RouterRetention
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
        self._own = RouterRetention(router, settings.executor.block_size)
        self._exchange: UseExchange | None = None

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
            self._own.set_workers(num_blocks)

    def retention(self, outcome: Outcome, now: float) -> Retention:
        """For the worker that the request goes to now."""
        ask, worker = outcome.ask, outcome.route.worker
        if ask.prompt_use is None:
            return ask.request.retention
        request_id = ask.request.request_id
        with self._lock:
            planned = self._own.retention(
                request_id, ask.prompt_use, worker, now, self._record_ms()
            )
        self._tell(planned.record)
        return planned.retention

    def finished(self, outcome: Outcome, now: float) -> None:
        request_id, cached = outcome.ask.request.request_id, outcome.cached_tokens
        use = outcome.ask.prompt_use
        if use is None:
            return
        num_blocks = None if cached is None else cached // use.block_size
        with self._lock:
            record = self._own.finished(request_id, num_blocks, now, self._record_ms())
        self._tell(record)

    def removed(self, worker: str, hexes: Sequence[str], now: float) -> None:
        """The log says so."""
        if not self._own.learned.num_blocks:
            return
        hashes = ints_of(hexes)
        with self._lock:
            self._own.removed(worker, hashes, now)

    def lost_tokens(self, prompt: PromptUse, now: float) -> dict[str, float]:
        """What placement asks when it chooses."""
        with self._lock:
            return self._own.lost_tokens(prompt, now)

    def tick(self, now: float) -> None:
        """At least once a second, apart from the requests."""
        with self._lock:
            self._own.tick(now)

    def describe(self) -> dict[str, Any]:
        """Part of the JSON of GET /fleet."""
        exchange, shared = self._exchange, self._own.shared
        with self._lock:
            return {
                "remembered_blocks": self._own.learned.num_blocks,
                "is_shared": exchange is not None,
                "others": {
                    **asdict(shared.counters),
                    "num_running": shared.num_running,
                    "num_bad": exchange.num_bad if exchange else 0,
                    "num_unsent": exchange.num_unsent if exchange else 0,
                },
            }

    def _heard(self, record: PrefixUse, at: float) -> None:
        with self._lock:
            self._own.heard(record, at)

    def _record_ms(self) -> int | None:
        """Of what is told; None: nobody is."""
        return None if self._exchange is None else time.time_ns() // 1_000_000

    def _tell(self, record: PrefixUse | None) -> None:
        if record is not None and self._exchange is not None:
            self._exchange.publish(record)
