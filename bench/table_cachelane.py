"""Measures Cachelane's routing table on the workload of table_workload; prints one JSON line."""

from __future__ import annotations

import argparse
import json
import time

from table_measure import rss, seconds, typical_seconds, typical_us
from table_workload import Stored, Workload, generate

from controllers.events import EventBatch, Removed, WorkerUp, hex_of, hexes_of
from controllers.events import Stored as StoredEvent
from controllers.record_codec import decode_batch, encode
from controllers.routing_table import RoutingTable

BLOCK_SIZE = 32


class Publisher:
    """Encoded batches of many workers, with `events_per_record` events in each."""

    def __init__(self, scheme: str, events_per_record: int) -> None:
        self._scheme = scheme
        self._per_record = events_per_record
        self._seq: dict[int, int] = {}
        self._waiting: dict[int, list] = {}
        self.records: list[bytes] = []

    def up(self, worker: int) -> None:
        up = WorkerUp(
            num_blocks={"gpu": 1_000_000},
            executor="bench",
            version="1",
            salt_id=self._scheme,
            max_seq_len=131_072,
        )
        self._emit(worker, [up])

    def add(self, worker: int, event: StoredEvent | Removed) -> None:
        waiting = self._waiting.setdefault(worker, [])
        waiting.append(event)
        if len(waiting) >= self._per_record:
            self._emit(worker, self._waiting.pop(worker))

    def take_stored(self, stored: list[Stored]) -> list[bytes]:
        """Records of these events."""
        for event in stored:
            self.add(event.worker, stored_event(event))
        return self.take()

    def take(self) -> list[bytes]:
        """Everything so far."""
        for worker in list(self._waiting):
            self._emit(worker, self._waiting.pop(worker))
        records, self.records = self.records, []
        return records

    def _emit(self, worker: int, events: list) -> None:
        seq = self._seq.get(worker, 0)
        self._seq[worker] = seq + 1
        batch = EventBatch(
            schema=1,
            worker=f"replica-{worker}/0",
            replica=f"replica-{worker}",
            dp_rank=0,
            model="bench-model",
            epoch=1_700_000_000_000,
            seq=seq,
            ts_ms=1_700_000_000_000 + seq,
            block_size=BLOCK_SIZE,
            events=events,
        )
        self.records.append(encode(batch))


def stored_event(event: Stored) -> StoredEvent:
    return StoredEvent(
        parent=None if event.parent is None else hex_of(event.parent),
        hashes=hexes_of(event.prefix),
        num_tokens=[BLOCK_SIZE] * len(event.prefix),
        retention_priority=[35] * len(event.prefix),
    )


def measure(workload: Workload, events_per_record: int) -> dict[str, float]:
    """Blocks/s, bytes and microseconds."""
    table = RoutingTable(BLOCK_SIZE)
    publisher = Publisher(table.hash_scheme, events_per_record)
    for worker in range(workload.num_workers):
        publisher.up(worker)
    for record in publisher.take():
        table.apply(decode_batch(record).batch)
    figures: dict[str, float] = {}

    records = publisher.take_stored(workload.stored)
    before = rss()
    _apply(figures, "store", table, records, workload.num_blocks)
    figures["bytes_per_block"] = (rss() - before) / workload.num_blocks

    for record in publisher.take_stored(workload.probe_stored):
        table.apply(decode_batch(record).batch)
    for name, chain in workload.probes.items():
        figures[f"find {name} us"] = typical_us(lambda c=chain: table.overlap(c.prefix))
    prompts = [chain.prefix for chain in workload.prompts]
    each = [typical_us(lambda p=p: table.overlap(p), repeat=5) for p in prompts]
    figures["find conversation us"] = sorted(each)[len(each) // 2]
    _check(table, workload)

    half = workload.stored[len(workload.stored) // 2 :]
    for event in reversed(half):
        publisher.add(event.worker, Removed(hashes=hexes_of(reversed(event.prefix))))
    num_removed = sum(len(event.prefix) for event in half)
    _apply(figures, "remove", table, publisher.take(), num_removed)

    worker = table.workers["replica-0/0"]
    figures["forget_blocks"] = worker.num_blocks
    figures["forget_ms"] = seconds(lambda: table.forget(worker.worker)) * 1e3
    return figures


def _apply(
    figures: dict[str, float], verb: str, table: RoutingTable, records: list[bytes], num_blocks: int
) -> None:
    """Decode and apply; notes the rates with and without decoding."""
    decoding_s = typical_seconds(records, decode_batch)
    start = time.perf_counter()
    whole_s = typical_seconds(records, lambda record: table.apply(decode_batch(record).batch))
    elapsed_s = time.perf_counter() - start
    figures[f"{verb}_blocks_per_s"] = num_blocks / whole_s
    figures[f"{verb}_decoded_blocks_per_s"] = num_blocks / (whole_s - decoding_s)
    figures[f"{verb}_elapsed_blocks_per_s"] = num_blocks / elapsed_s


def _check(table: RoutingTable, workload: Workload) -> None:
    """The table did hold what it was asked for."""
    found = table.overlap(workload.probes["512 half"].prefix)
    depths = {overlap.num_blocks for overlap in found.values()}
    if depths != {256} or len(found) != (workload.num_workers + 1) // 2:
        raise SystemExit(f"the table found {depths} of 256 blocks on {len(found)} workers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=200_000)
    parser.add_argument("--per-event", type=int, default=13)
    parser.add_argument("--events-per-record", type=int, default=1)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    workload = generate(args.workers, args.blocks, args.per_event, args.seed)
    print(json.dumps(measure(workload, args.events_per_record)))


if __name__ == "__main__":
    main()
