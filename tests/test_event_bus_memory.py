"""Faults that only the bus in memory can produce; its promises are in the contract suite."""

from __future__ import annotations

import threading

from infra.event_bus_base import Delivery, Loss, Record
from infra.event_bus_memory import MemoryBus

TOPIC = "cachelane.kv-events"


def drain(bus: MemoryBus) -> list[Record]:
    reader = bus.reader(TOPIC)
    records = reader.poll(0.0)
    reader.close()
    return records


def test_lose_next():
    bus = MemoryBus(num_partitions=1)
    deliveries: list[Delivery] = []
    losses: list[Loss] = []
    producer = bus.producer(deliveries.append, losses.append)
    bus.lose_next(2)
    assert all(producer.publish(TOPIC, b"k", b"%d" % i) for i in range(4))
    assert losses == [Loss(TOPIC, b"k", b"%d" % i, "lost on demand") for i in range(2)]
    assert deliveries == [Delivery(TOPIC, b"k", 0, 0), Delivery(TOPIC, b"k", 0, 1)]
    assert [(r.offset, r.value) for r in drain(bus)] == [(0, b"2"), (1, b"3")]
    health = producer.health()
    assert (health.num_published, health.num_failed, health.num_pending) == (2, 2, 0)


def test_lose_pending():
    bus = MemoryBus()
    losses: list[Loss] = []
    producer = bus.producer(on_loss=losses.append)
    bus.take_down()
    producer.publish(TOPIC, b"k", b"1")
    bus.lose_pending()
    producer.publish(TOPIC, b"k", b"2")
    bus.bring_up()
    assert losses == [Loss(TOPIC, b"k", b"1", "not sent within the delivery timeout")]
    assert [r.value for r in drain(bus)] == [b"2"]


def test_bound_on_bytes():
    bus = MemoryBus(max_pending_bytes=10)
    producer = bus.producer()
    bus.take_down()
    assert producer.publish(TOPIC, b"k", b"x" * 9)
    assert not producer.publish(TOPIC, b"k", b"x")
    assert producer.health().num_dropped == 1


def test_poll_wakes_when_a_record_comes():
    bus = MemoryBus()
    reader = bus.reader(TOPIC)
    assert reader.poll(0.0) == []
    found: list[Record] = []
    thread = threading.Thread(target=lambda: found.extend(reader.poll(60.0)))
    thread.start()
    bus.producer().publish(TOPIC, b"k", b"1")
    thread.join(30.0)
    assert [r.value for r in found] == [b"1"]


def test_concurrent_producers_keep_the_order_of_each_key():
    bus = MemoryBus(num_partitions=2, max_pending=100_000)
    producer = bus.producer()
    keys = [b"a", b"b", b"c", b"d"]

    def publish(key: bytes) -> None:
        for i in range(500):
            producer.publish(TOPIC, key, b"%d" % i)

    threads = [threading.Thread(target=publish, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = drain(bus)
    for key in keys:
        assert [r.value for r in records if r.key == key] == [b"%d" % i for i in range(500)]
