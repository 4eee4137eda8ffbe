"""Decision time of Cachelane on the workload of decision_workload; prints one JSON line.

`run`: from a prompt's token ids, a NumPy array, to a worker that is reserved, as a router does it:
hashing, overlap, cost, choice, reservation, through a queue in which nobody else waits. `choose`:
the same without the queue. `hashing`: of that. `pass`: one look at a full queue.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeAlias

import msgspec

from bench.decision_workload import (
    BLOCK_SIZE,
    LENGTHS,
    Stored,
    Times,
    Tokens,
    Workload,
    add_arguments,
    workload_of,
)
from controllers.blocks import HASH_SCHEME, block_hashes
from controllers.cost_model import CostModel
from controllers.events import Event, EventBatch, Load, WorkerUp, hex_of, hexes_of
from controllers.events import Stored as StoredEvent
from controllers.placement import Placed, Placement, PlacementSettings, Query, Sent
from controllers.router_queue import NUM_SCANNED
from controllers.routing_table import RoutingTable

NUM_BLOCKS = 65_536  # of a worker
MAX_RUNNING = 256
# Arrivals: predictions live for 5 s, so those of 50 prompts are there, as many expire as are added,
# and a prompt that is asked again is not expected anywhere any more.
BETWEEN_S = 0.1
NUM_BURSTS = 20


class Fleet:
    """A table that knows what the workers hold, and a router with requests on all of them."""

    def __init__(self, workload: Workload) -> None:
        self.workers = [f"replica-{i}/0" for i in range(workload.num_workers)]
        self.now = 1000.0
        self.table = RoutingTable(BLOCK_SIZE)
        self._seqs = [0] * workload.num_workers
        self._chain_hashes: dict[int, list[int]] = {}
        self.num_asked = 0
        for worker in range(workload.num_workers):
            self._apply(worker, _worker_up())
        for run in workload.stored:
            self._apply(run.worker, self._event(run))
        self.placement = Placement(
            PlacementSettings(), CostModel(), random.Random(0), float(MAX_RUNNING)
        )
        self.placement.set_workers(dict.fromkeys(self.workers, NUM_BLOCKS))
        self._serve(workload)

    def decide(self, decide: Decide, tokens: Tokens) -> tuple[Placed, float]:
        """What was decided, and how long it took in seconds. The request leaves at once."""
        self.num_asked += 1
        self.now += BETWEEN_S
        request_id = f"request-{self.num_asked}"
        started = time.perf_counter()
        placed = decide(self, request_id, tokens)
        elapsed_s = time.perf_counter() - started
        self.placement.release(request_id, self.now)
        return placed, elapsed_s

    def forget_predictions(self) -> None:
        """Let so much time go by."""
        self.now += 2 * PlacementSettings().route_ttl_s
        self.placement.sweep(self.now)

    def _serve(self, workload: Workload) -> None:
        """Requests that decode on the workers, and one load record of each worker."""
        for number, tokens in enumerate(workload.running):
            choose(self, f"running-{number}", tokens)
            self.now += BETWEEN_S
            self.placement.first_token(f"running-{number}", self.now)
        for worker in self.workers:
            self.placement.on_load(
                worker, _load(len(workload.running) // len(self.workers)), self.now
            )

    def _apply(self, worker: int, event: Event) -> None:
        batch = EventBatch(
            schema=1,
            worker=self.workers[worker],
            replica=f"replica-{worker}",
            dp_rank=0,
            model="bench-model",
            epoch=1,
            seq=self._seqs[worker],
            ts_ms=1,
            block_size=BLOCK_SIZE,
            events=[event],
        )
        self._seqs[worker] += 1
        self.table.apply(batch)

    def _event(self, run: Stored) -> StoredEvent:
        key = id(run.chain)
        if key not in self._chain_hashes:
            self._chain_hashes[key] = block_hashes(run.chain.tokens, BLOCK_SIZE)
        hashes, num = self._chain_hashes[key], run.end - run.start
        return StoredEvent(
            parent=hex_of(hashes[run.start - 1]) if run.start else None,
            hashes=hexes_of(hashes[run.start : run.end]),
            num_tokens=[BLOCK_SIZE] * num,
            retention_priority=[35] * num,
        )


Decide: TypeAlias = Callable[[Fleet, str, Tokens], Placed]


def query_of(request_id: str, tokens: Tokens) -> Query:
    hashes = block_hashes(tokens, BLOCK_SIZE)
    return Query(request_id=request_id, hashes=hashes, num_tokens=len(tokens))


def choose(fleet: Fleet, request_id: str, tokens: Tokens) -> Placed:
    return fleet.placement.choose(query_of(request_id, tokens), fleet.table, fleet.now)


def run(fleet: Fleet, request_id: str, tokens: Tokens) -> Placed:
    fleet.placement.submit(query_of(request_id, tokens), fleet.now)
    (sent,) = fleet.placement.run(fleet.table, fleet.now)
    assert isinstance(sent, Sent)
    return sent.placed


WAYS: dict[str, Decide] = {"run": run, "choose": choose}


def measure(workload: Workload, num_passes: int) -> dict[str, float]:
    """Microseconds by way, length and whether there is an overlap."""
    fleet, times = Fleet(workload), Times()
    for length, prompts in workload.prompts.items():
        for way, decide in WAYS.items():
            fleet.forget_predictions()
            for index, tokens in [*enumerate(prompts)] * num_passes:
                started = time.perf_counter()
                block_hashes(tokens, BLOCK_SIZE)
                times.add("hashing", length, index, time.perf_counter() - started)
                placed, elapsed_s = fleet.decide(decide, tokens)
                times.add(way, length, index, elapsed_s)
                _check(length, index, placed)
    return {**times.figures(), **measure_full_queue(fleet, workload)}


def measure_full_queue(fleet: Fleet, workload: Workload) -> dict[str, float]:
    """Milliseconds of CPU for a pass over as many requests as it looks at, of all lengths. `sent`:
    a burst meets workers without unstarted work. `held`: all workers are in long prefills."""
    prompts = list(chain.from_iterable(zip(*workload.prompts.values(), strict=True)))[:NUM_SCANNED]
    sent_s = []
    for _ in range(NUM_BURSTS):
        fleet.forget_predictions()
        sent_s.append(_pass_s(fleet, prompts))
    for worker in fleet.workers:
        long = query_of(f"long on {worker}", workload.prompts[max(LENGTHS)][1][::-1])
        pinned = msgspec.structs.replace(long, pinned=worker)
        fleet.placement.choose(pinned, fleet.table, fleet.now)
    held_s = [_pass_s(fleet, prompts, must_hold=True) for _ in range(NUM_BURSTS)]
    return {
        "pass sent p50 ms": 1e3 * statistics.median(sent_s),
        "pass held p50 ms": 1e3 * statistics.median(held_s),
    }


def _pass_s(fleet: Fleet, prompts: Sequence[Tokens], must_hold: bool = False) -> float:
    """The requests leave afterwards, sent or not."""
    ids = [f"waiting-{index}" for index in range(len(prompts))]
    for request_id, tokens in zip(ids, prompts, strict=True):
        fleet.placement.submit(query_of(request_id, tokens), fleet.now)
    started = time.thread_time()  # a pass is long enough to lose its core on a busy machine
    results = fleet.placement.run(fleet.table, fleet.now)
    elapsed_s = time.thread_time() - started
    if must_hold == bool(results):
        raise SystemExit(f"{len(results)} of {len(prompts)} requests were sent")
    for request_id in ids:
        fleet.placement.release(request_id, fleet.now)
    return elapsed_s


def _check(length: int, index: int, placed: Placed) -> None:
    """It went where its first half is."""
    expected = length // 2 * BLOCK_SIZE if index % 2 == 0 else 0
    if placed.predicted_cached_tokens != expected:
        raise SystemExit(f"prompt {index} of {length} blocks: {placed}")


def _worker_up() -> WorkerUp:
    return WorkerUp(
        num_blocks={"gpu": NUM_BLOCKS},
        executor="bench",
        version="1",
        salt_id=HASH_SCHEME,
        max_seq_len=max(LENGTHS) * BLOCK_SIZE,
    )


def _load(num_active: int) -> Load:
    return Load(
        num_active=num_active,
        num_queued=0,
        queued_prefill_tokens=0,
        decode_tokens=0,
        used_blocks={"gpu": NUM_BLOCKS // 4},
        total_blocks={"gpu": NUM_BLOCKS},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--workers", type=int, default=8)
    args = parser.parse_args()
    print(json.dumps(measure(workload_of(args), args.passes)))


if __name__ == "__main__":
    main()
