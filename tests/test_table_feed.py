from __future__ import annotations

import threading

import pytest

from controllers.blocks import HASH_SCHEME
from controllers.events import (
    SCHEMA,
    Event,
    EventBatch,
    Load,
    Snapshot,
    SnapshotBlocks,
    Stored,
    WorkerUp,
    hexes_of,
)
from controllers.record_codec import encode
from controllers.routing_table import RoutingTable
from infra.event_bus_memory import MemoryBus
from infra.settings_sections import EventSettings
from infra.table_feed import FORGET_STRANGERS_S, RETRY_S, TableFeed

UP = WorkerUp(
    num_blocks={"gpu": 8}, executor="scripted", version="1", salt_id=HASH_SCHEME, max_seq_len=64
)
HASHES = [11, 22, 33]
LOAD = Load(
    num_active=1,
    num_queued=0,
    queued_prefill_tokens=0,
    decode_tokens=0,
    used_blocks={"gpu": 1},
    total_blocks={"gpu": 8},
)


class Rig:
    """A feed whose thread is the test, on a bus in memory."""

    def __init__(self) -> None:
        self.bus = MemoryBus()
        self.producer = self.bus.producer()
        self.topic = self.bus.topics.kv_events
        self.now = 100.0
        self.loads: list[tuple[str, Load, float]] = []
        self.asked: list[list[str]] = []
        self.feed = TableFeed(
            bus=self.bus,
            topics=self.bus.topics,
            table=RoutingTable(4),
            settings=EventSettings(),
            on_load=lambda *args: self.loads.append(args),
            clock=lambda: self.now,
        )
        self.feed.open(self.asked.append)
        self.seq: dict[str, int] = {}

    def publish(self, worker: str, *events: Event, skip: int = 0, ts_ms: int = 0) -> None:
        seq = self.seq.get(worker, 0) + skip
        self.seq[worker] = seq + 1
        batch = EventBatch(
            schema=SCHEMA,
            worker=worker,
            replica=worker,
            dp_rank=0,
            model="m",
            epoch=1,
            seq=seq,
            ts_ms=ts_ms,
            block_size=4,
            events=list(events),
        )
        self.producer.publish(self.topic, worker.encode(), encode(batch))

    def blocks(self) -> dict[str, int]:
        overlap = self.feed.table.overlap(HASHES)
        return {worker: found.num_blocks for worker, found in overlap.items()}

    def warm(self, worker: str) -> None:
        self.publish(worker, UP, stored())
        self.feed.turn()


def stored() -> Stored:
    return Stored(
        parent=None, hashes=hexes_of(HASHES), num_tokens=[4] * 3, retention_priority=[35] * 3
    )


def snapshot(part: int = 0, num_parts: int = 1) -> Snapshot:
    hashes = hexes_of(HASHES)
    return Snapshot(
        snapshot_id=1,
        part=part,
        num_parts=num_parts,
        blocks=SnapshotBlocks(
            hashes=hashes,
            parents=["", *hashes[:-1]],
            mediums=["gpu"] * 3,
            retention_priority=[35] * 3,
            tiers=["default"] * 3,
            num_tokens=[4] * 3,
        ),
        num_blocks={"gpu": 8},
        max_seq_len=64,
        salt_id=HASH_SCHEME,
    )


def test_records_become_overlap_and_loads() -> None:
    rig = Rig()
    rig.publish("a-0", UP, stored(), LOAD)
    rig.feed.turn()
    assert rig.blocks() == {"a-0": 3}
    assert rig.loads == [("a-0", LOAD, 100.0)]
    assert (rig.feed.counters.num_records, rig.feed.counters.num_applied) == (1, 1)


def test_a_hole_makes_a_member_stale_and_asks_once_in_a_while() -> None:
    rig = Rig()
    rig.warm("a-0")
    rig.feed.set_members(["a-0"])
    rig.publish("a-0", LOAD, skip=1)
    rig.feed.turn()
    assert (rig.blocks(), rig.feed.missing(), rig.asked) == ({}, ["a-0"], [["a-0"]])
    rig.feed.turn()
    assert rig.asked == [["a-0"]]
    rig.now += RETRY_S
    rig.feed.turn()
    assert rig.asked == [["a-0"], ["a-0"]]
    rig.publish("a-0", snapshot())
    rig.feed.turn()
    assert (rig.blocks(), rig.feed.missing()) == ({"a-0": 3}, [])
    assert (rig.feed.counters.num_gaps, rig.feed.counters.num_snapshots_asked) == (1, 2)


def test_a_member_never_heard_of_is_asked_and_strangers_are_not() -> None:
    rig = Rig()
    rig.publish("stranger-0", LOAD, skip=5)
    rig.feed.set_members(["b-0", "a-0"])
    rig.feed.turn()
    assert (rig.feed.missing(), rig.asked) == (["a-0", "b-0"], [["a-0", "b-0"]])


def test_a_member_that_left_is_forgotten_at_once() -> None:
    rig = Rig()
    rig.warm("a-0")
    rig.warm("b-0")
    rig.feed.set_members(["a-0", "b-0"])
    rig.feed.set_members(["b-0"])
    assert (rig.blocks(), list(rig.feed.table.workers)) == ({"b-0": 3}, ["b-0"])


def test_a_silent_stranger_is_forgotten_and_a_silent_member_is_not() -> None:
    rig = Rig()
    rig.warm("a-0")
    rig.warm("stranger-0")
    rig.feed.set_members(["a-0"])
    rig.now += FORGET_STRANGERS_S + 1
    rig.feed.turn()
    assert (list(rig.feed.table.workers), rig.blocks()) == (["a-0"], {})
    rig.publish("a-0", LOAD)
    rig.feed.turn()
    assert rig.blocks() == {"a-0": 3}


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff\xfe\x00",
        b"x" * 500_000,
        b'{"schema":1,"worker":"a-0"}',
        encode(LOAD),
    ],
)
def test_junk_is_counted_and_the_next_record_counts(junk: bytes) -> None:
    rig = Rig()
    rig.producer.publish(rig.topic, b"a-0", junk)
    rig.publish("a-0", UP, stored())
    rig.feed.turn()
    assert rig.blocks() == {"a-0": 3}
    assert (rig.feed.counters.num_bad, rig.feed.counters.num_applied) == (1, 1)


def test_an_unknown_event_type_is_counted_and_its_record_counts() -> None:
    rig = Rig()
    rig.warm("a-0")
    batch = b'{"schema":1,"worker":"a-0","replica":"a","dp_rank":0,"model":"m","epoch":1,"seq":1,'
    batch += b'"ts_ms":0,"block_size":4,"events":[{"type":"polished"}]}'
    rig.producer.publish(rig.topic, b"a-0", batch)
    rig.seq["a-0"] += 1
    rig.publish("a-0", LOAD)
    rig.feed.turn()
    assert (rig.feed.counters.num_unknown_events, rig.feed.counters.num_gaps) == (1, 0)
    assert rig.blocks() == {"a-0": 3}


def test_another_log_empties_the_table_and_asks_again() -> None:
    rig = Rig()
    rig.warm("a-0")
    rig.feed.set_members(["a-0"])
    rig.bus.recreate_topic(rig.topic)
    rig.feed.turn()
    assert (rig.blocks(), rig.feed.counters.num_resets) == ({}, 1)
    rig.feed.turn()
    assert rig.asked == [["a-0"]]
    rig.publish("a-0", snapshot())
    rig.feed.turn()
    assert rig.blocks() == {"a-0": 3}


def test_while_the_bus_is_away_members_fall_silent_and_come_back() -> None:
    rig = Rig()
    rig.warm("a-0")
    rig.feed.set_members(["a-0"])
    rig.bus.take_down()
    rig.publish("a-0", LOAD)
    rig.now += EventSettings().heartbeat_timeout_s + 0.1
    rig.feed.turn()
    assert (rig.blocks(), rig.feed.missing(), rig.feed.is_connected()) == ({}, ["a-0"], False)
    rig.bus.bring_up()
    rig.feed.turn()
    assert (rig.blocks(), rig.feed.missing(), rig.feed.is_connected()) == ({"a-0": 3}, [], True)


def test_the_thread_reads_until_it_is_closed() -> None:
    rig = Rig()
    seen = threading.Semaphore(0)
    feed = TableFeed(
        bus=rig.bus,
        topics=rig.bus.topics,
        table=RoutingTable(4),
        settings=EventSettings(),
        on_load=lambda *args: seen.release(),
    )
    feed.start(lambda workers: None)
    rig.publish("a-0", UP, LOAD)
    assert seen.acquire(timeout=10)
    assert feed.is_alive()
    feed.close()
    assert not feed.is_alive()
