"""How long a cache event takes from the engine into a routing table, through a real Kafka.

    python -m bench.events [--workers 4] [--rate 1000] [--seconds 20] [--json OUT.json]

One process publishes for all workers with the product's own publishers, another reads with the
product's own feed, on this machine's clock. Then the broker is killed with SIGKILL, started again
after a while, and the time until every worker is known again is taken.
"""

from __future__ import annotations

import argparse
import multiprocessing
import threading
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event as Flag
from pathlib import Path
from statistics import median
from typing import Any

from bench.arguments import new_file, positive_int, positive_number
from bench.broker import running_broker
from bench.report import write_json
from controllers.blocks import HASH_SCHEME
from controllers.events import Event, EventBatch, Load, Stored, WorkerUp, hex_of
from controllers.routing_table import RoutingTable
from controllers.worker_state import Applied
from infra.event_bus import KafkaBus
from infra.event_bus_base import Topics
from infra.event_publisher import EventPublisher, WorkerIdentity
from infra.local_broker_tansu import Broker, start_local_broker
from infra.settings_sections import EventSettings, KafkaSettings
from infra.table_feed import TableFeed

BLOCK_SIZE = 32
OUTAGE_S = 6.0
WARM_UP_S = 3.0
HEAL_BOUND_S = 30.0
TARGET_P99_MS = 20.0
UP = WorkerUp(
    num_blocks={"gpu": 200_000},
    executor="bench",
    version="1",
    salt_id=HASH_SCHEME,
    max_seq_len=4096,
)


class SteadySource:
    """`rate` stored events a second; the hash of each is the time it was made, in ns."""

    def __init__(self, rate: float) -> None:
        self._period_s = 1.0 / rate
        self._next_s = time.perf_counter()

    def drain_events(self, timeout_s: float) -> list[Event]:
        wait_s = min(timeout_s, self._next_s - time.perf_counter())
        if wait_s > 0:
            time.sleep(wait_s)
        events: list[Event] = []
        while self._next_s <= time.perf_counter():
            self._next_s += self._period_s
            made = hex_of(time.time_ns())
            events.append(
                Stored(parent=None, hashes=[made], num_tokens=[32], retention_priority=[35])
            )
        return events

    def load(self) -> Load:
        return Load(
            num_active=0,
            num_queued=0,
            queued_prefill_tokens=0,
            decode_tokens=0,
            used_blocks={},
            total_blocks=UP.num_blocks,
        )


class TimedTable(RoutingTable):
    """Notes the age of every stored event when it has been applied."""

    def __init__(self) -> None:
        super().__init__(BLOCK_SIZE)
        self.ages_ms: list[float] = []

    def apply(self, batch: EventBatch, now: float | None = None) -> Applied:
        applied = super().apply(batch, now)
        clock = time.time_ns()
        for event in batch.events:
            if isinstance(event, Stored):
                self.ages_ms += [(clock - int(h, 16)) / 1e6 for h in event.hashes]
        return applied


def publish(kafka: KafkaSettings, workers: list[str], rate: float, stop: Flag, out: Any) -> None:
    """The publishing process: one publisher a worker, until told to stop."""
    bus = KafkaBus(kafka)
    publishers = [
        EventPublisher(
            source=SteadySource(rate),
            identity=WorkerIdentity(f"{name}-0", name, 0, "bench", BLOCK_SIZE),
            up=UP,
            bus=bus,
            topics=Topics(kafka.topic_prefix),
            settings=EventSettings(),
            max_record_bytes=kafka.max_record_bytes,
        )
        for name in workers
    ]
    for publisher in publishers:
        publisher.start()
    most = 0
    while not stop.wait(0.05):
        most = max(most, *(p.health().num_pending for p in publishers))
    for publisher in publishers:
        publisher.close("end")
    out.put(most)


def read(kafka: KafkaSettings, workers: list[str], orders: Connection) -> None:
    """The reading process. Orders: "ages" -> ages since the last call, "missing" -> workers."""
    table = TimedTable()
    feed = TableFeed(
        bus=KafkaBus(kafka),
        topics=Topics(kafka.topic_prefix),
        table=table,
        settings=EventSettings(),
        on_load=lambda *args: None,
    )
    feed.set_members([f"{name}-0" for name in workers])
    feed.start(lambda names: None)
    while (order := orders.recv()) != "end":
        if order == "ages":
            with feed.lock:
                orders.send(table.ages_ms)
                table.ages_ms = []
        else:
            orders.send(feed.missing())
    feed.close()


def measure(num_workers: int, rate: float, seconds: float) -> dict[str, Any]:
    """Everything of this module, on a broker of its own."""
    with running_broker() as (state_dir, broker):
        figures = _measure(state_dir, broker, num_workers, rate, seconds)
    return {"workers": num_workers, "rate": rate, **figures}


def _measure(
    state_dir: Path, broker: Broker, num_workers: int, rate: float, seconds: float
) -> dict[str, Any]:
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap)
    KafkaBus(kafka).ensure_topics()
    workers = [f"w{i}" for i in range(num_workers)]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    stop, out = context.Event(), context.Queue()
    reader = context.Process(target=read, args=(kafka, workers, theirs))
    writer = context.Process(target=publish, args=(kafka, workers, rate, stop, out))
    reader.start()
    writer.start()
    try:
        figures = _steady(ours, seconds) | _outage(ours, state_dir, broker)
        stop.set()
        most_pending = out.get(timeout=30)
        ours.send("end")
        writer.join(30)
        reader.join(30)
    finally:
        writer.terminate()  # if they have not ended
        reader.terminate()
    return {"max_pending_records": most_pending, **figures}


def _steady(orders: Connection, seconds: float) -> dict[str, Any]:
    _until_known(orders)  # else what came while the reader was starting would count as late
    threading.Event().wait(WARM_UP_S)
    _ask(orders, "ages")
    threading.Event().wait(seconds)
    ages = sorted(_ask(orders, "ages"))
    return {
        "events": len(ages),
        "events_per_s": round(len(ages) / seconds),
        "p50_ms": round(median(ages), 2),
        "p99_ms": round(ages[int(len(ages) * 0.99)], 2),
        "max_ms": round(ages[-1], 2),
    }


def _outage(orders: Connection, state_dir: Path, broker: Any) -> dict[str, Any]:
    broker.kill()
    threading.Event().wait(OUTAGE_S)
    stale = _ask(orders, "missing")
    started = time.perf_counter()
    start_local_broker(state_dir, lambda line: None)
    back_s = time.perf_counter() - started
    return {
        "stale_during_outage": len(stale),
        "broker_restart_s": round(back_s, 2),
        "heal_s": _until_known(orders),
    }


def _until_known(orders: Connection) -> float | None:
    """Seconds until no worker is missing; None if that takes too long."""
    began = time.perf_counter()
    while _ask(orders, "missing"):
        if time.perf_counter() - began > HEAL_BOUND_S:
            return None
        threading.Event().wait(0.02)
    return round(time.perf_counter() - began, 2)


def _ask(orders: Connection, what: str) -> Any:
    orders.send(what)
    return orders.recv()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=positive_int, default=4)
    parser.add_argument("--rate", type=positive_number, default=1000.0)
    parser.add_argument("--seconds", type=positive_number, default=20.0)
    parser.add_argument("--json", type=new_file)
    args = parser.parse_args()
    figures = measure(args.workers, args.rate, args.seconds)
    write_json("events", figures, args.json)
    for name, value in figures.items():
        print(f"{name:24} {value}")
    verdict = "met" if figures["p99_ms"] < TARGET_P99_MS else "missed"
    print(f"target p99 < {TARGET_P99_MS:.0f} ms: {verdict}")


if __name__ == "__main__":
    main()
