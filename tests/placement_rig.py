"""A fleet of pretended workers around a real Placement and a real RoutingTable."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Collection, Sequence

from controllers.blocks import HASH_SCHEME
from controllers.cost_model import CostModel
from controllers.events import Event, EventBatch, Load, Stored, WorkerUp, hexes_of
from controllers.placement import Losses, Placed, Placement, PlacementSettings, Query
from controllers.routing_table import RoutingTable

BLOCK = 32
NUM_BLOCKS = 10_000


def load(
    used: int = 0, total: int = NUM_BLOCKS, active: int = 0, queued: int = 0, tokens: int = 0
) -> Load:
    return Load(
        num_active=active,
        num_queued=queued,
        queued_prefill_tokens=tokens,
        decode_tokens=0,
        used_blocks={"gpu": used},
        total_blocks={"gpu": total},
    )


class Fleet:
    """`now` advances only when a test says so. Workers are fresh and empty unless `is_known` is
    False: then the table has never heard of them."""

    def __init__(
        self,
        num_workers: int = 2,
        *,
        seed: int = 0,
        model: CostModel | None = None,
        is_known: bool = True,
        max_running: float = math.inf,
        losses: Losses | None = None,
        **preferences: object,
    ) -> None:
        self.workers = [f"r{i}-0" for i in range(num_workers)]
        self.table = RoutingTable(BLOCK)
        self.settings = PlacementSettings(**preferences)  # type: ignore[arg-type]
        self.placement = Placement(
            self.settings,
            model or CostModel(),
            random.Random(seed),
            max_running,
            losses=losses,
        )
        self.placement.set_workers(dict.fromkeys(self.workers, NUM_BLOCKS))
        self.now = 1000.0
        self._seqs = {worker: itertools.count() for worker in self.workers}
        self._epochs = dict.fromkeys(self.workers, 100)
        self._ids = itertools.count()
        if is_known:
            for worker in self.workers:
                self.start(worker)

    def start(self, worker: str) -> None:
        """The worker's engine starts, or starts again."""
        self._epochs[worker] += 100
        self._seqs[worker] = itertools.count()
        self.tell(
            worker,
            WorkerUp(
                num_blocks={"gpu": NUM_BLOCKS},
                executor="test",
                version="1",
                salt_id=HASH_SCHEME,
                max_seq_len=100_000,
            ),
        )

    def tell(self, worker: str, event: Event) -> None:
        """One event of the worker reaches the table."""
        batch = EventBatch(
            schema=1,
            worker=worker,
            replica=worker,
            dp_rank=0,
            model="m",
            epoch=self._epochs[worker],
            seq=next(self._seqs[worker]),
            ts_ms=int(self.now * 1000),
            block_size=BLOCK,
            events=[event],
        )
        self.table.apply(batch, self.now)

    def lose(self, worker: str) -> None:
        """A batch of the worker is lost; the next one makes it stale."""
        next(self._seqs[worker])
        self.tell(worker, load())

    def store(self, worker: str, hashes: Sequence[int], medium: str = "gpu") -> None:
        """The worker holds the prompt's blocks from now on."""
        self.tell(
            worker,
            Stored(
                parent=None,
                hashes=hexes_of(hashes),
                num_tokens=[BLOCK] * len(hashes),
                retention_priority=[35] * len(hashes),
                medium=medium,
            ),
        )

    def query(self, hashes: Sequence[int], **fields: object) -> Query:
        """The prompt is 7 tokens longer than its full blocks."""
        base: dict[str, object] = {
            "request_id": f"q{next(self._ids)}",
            "hashes": hashes,
            "num_tokens": len(hashes) * BLOCK + 7,
        }
        return Query(**(base | fields))  # type: ignore[arg-type]

    def choose(self, query: Query, exclude: Collection[str] = ()) -> Placed:
        return self.placement.choose(query, self.table, self.now, exclude)

    def run(
        self, hashes: Sequence[int], *, pause_s: float = 0.5, output_tokens: int = 20
    ) -> Placed:
        """One request from placing to its last token; its blocks are stored and the fleet is idle
        afterwards."""
        query = self.query(hashes)
        placed = self.choose(query)
        self.now += placed.predicted_ttft_ms / 1000.0
        self.placement.first_token(query.request_id, self.now)
        self.store(placed.worker, hashes)
        self.now += pause_s
        self.placement.release(query.request_id, self.now, output_tokens)
        return placed
