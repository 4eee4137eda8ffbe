"""Placement for several threads: one lock around reservations, loads and suspected workers.

The event loop places and releases, the table feed's thread brings loads, Serve's router thread the
workers. Every decision is `controllers.placement`'s.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from typing import Any

from controllers.cost_model import CostModel
from controllers.events import Load
from controllers.placement import Placed, Placement, PlacementSettings, Query, TableView
from controllers.suspects import Suspects
from infra.settings import Settings

# Serve needs about so long to find out that a replica is gone and to tell its routers.
SUSPECTED_S = 5.0


class Placer:
    """`now` in seconds of one steady clock."""

    def __init__(self, settings: Settings, table: TableView, seed: int | None) -> None:
        self.suspects = Suspects(SUSPECTED_S)
        self._table = table
        self._lock = threading.Lock()
        self._placement = Placement(
            settings.routing,
            CostModel(settings.executor.max_batched_tokens),
            random.Random(seed),
            max_running=settings.executor.max_batch_size,
        )

    @property
    def num_reserved(self) -> int:
        return self._placement.num_reserved

    @property
    def num_expired(self) -> int:
        """Reservations that nobody released."""
        return self._placement.num_expired

    def configure(self, settings: PlacementSettings) -> None:
        with self._lock:
            self._placement.configure(settings)

    def set_workers(self, num_blocks: Mapping[str, int]) -> None:
        """GPU blocks by worker."""
        with self._lock:
            self._placement.set_workers(num_blocks)

    def choose(self, query: Query, workers: set[str], excluded: set[str], now: float) -> Placed:
        """Choose and reserve, suspected workers last. Raises NotReady or Overloaded."""
        with self._lock:
            suspected = self.suspects.among(workers - excluded, now)
            return self._placement.choose(query, self._table, now, exclude=excluded | suspected)

    def explain(self, query: Query, now: float) -> dict[str, Any]:
        """The choice and every worker's figures; nothing is reserved."""
        with self._lock:
            return self._placement.explain(query, self._table, now)

    def first_token(self, request_id: str, worker: str, now: float) -> None:
        with self._lock:
            self.suspects.clear(worker)
            self._placement.first_token(request_id, now)

    def failed(self, request_id: str, worker: str, now: float) -> None:
        """The worker did not do it, and may not do others either."""
        with self._lock:
            self.suspects.fail(worker, now)
            self._placement.release(request_id, now, 0)

    def release(self, request_id: str, num_output_tokens: int, now: float) -> None:
        with self._lock:
            self._placement.release(request_id, now, num_output_tokens)

    def on_load(self, worker: str, load: Load, now: float) -> None:
        with self._lock:
            if load.is_stalled:
                self.suspects.fail(worker, now)
            self._placement.on_load(worker, load, now)
