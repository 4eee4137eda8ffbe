from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from controllers.events import (
    Event,
    EventBatch,
    Load,
    Lost,
    Removed,
    Snapshot,
    Stored,
    WorkerDown,
    WorkerUp,
    hex_of,
    hexes_of,
)
from controllers.record_codec import decode_batch
from infra.event_bus_memory import MemoryBus
from infra.event_publisher import EventPublisher, WorkerIdentity
from infra.settings_sections import EventSettings

UP = WorkerUp(num_blocks={"gpu": 8}, executor="scripted", version="1", salt_id="s", max_seq_len=64)
H = hexes_of(range(1, 7))


IDENTITY = WorkerIdentity("r-0", "r", 0, "m", 4)


@dataclass
class Source:
    """An executor's event side: what a test puts in comes out at the next drain."""

    events: list[Event] = field(default_factory=list)

    def drain_events(self, timeout_s: float) -> list[Event]:
        drained, self.events = self.events, []
        return drained

    def load(self) -> Load:
        return Load(
            num_active=1,
            num_queued=2,
            queued_prefill_tokens=30,
            decode_tokens=0,
            used_blocks={"gpu": 3},
            total_blocks={"gpu": 8},
        )


class Rig:
    """A publisher without its thread, on a bus in memory, with a clock that a test moves."""

    def __init__(self, bus: MemoryBus | None = None, **settings: float) -> None:
        self.bus = bus or MemoryBus()
        self.source = Source()
        self.now = 100.0
        self.publisher = EventPublisher(
            source=self.source,
            identity=IDENTITY,
            up=UP,
            bus=self.bus,
            topics=self.bus.topics,
            settings=EventSettings(**{"load_interval_s": 1000.0, "linger_s": 0.0, **settings}),  # type: ignore[arg-type]
            max_record_bytes=1_000_000,
            extra_queued=lambda: {0: (2, 30), 2: (3, 40)},
            clock=lambda: self.now,
        )
        self.reader = self.bus.reader(self.bus.topics.kv_events)

    def turn(self, *events: Event) -> list[list[Event]]:
        self.source.events += events
        self.publisher.turn(0)
        return [batch.events for batch in self.read()]

    def read(self) -> list[EventBatch]:
        return [decode_batch(record.value).batch for record in self.reader.poll(0)]

    def started(self) -> Rig:
        self.publisher.begin()
        self.turn()
        return self


def stored(*hashes: str, parent: str | None = None) -> Stored:
    return Stored(
        parent=parent,
        hashes=list(hashes),
        num_tokens=[4] * len(hashes),
        retention_priority=[35] * len(hashes),
    )


def snapshot_hashes(events: list[Event]) -> list[str]:
    (snapshot,) = events
    assert isinstance(snapshot, Snapshot)
    return snapshot.blocks.hashes


def test_an_epoch_begins_with_worker_up_an_empty_snapshot_and_a_load() -> None:
    rig = Rig()
    rig.publisher.begin()
    rig.publisher.turn(0)
    up, snapshot, load = rig.read()
    assert up.events == [UP]
    assert snapshot_hashes(snapshot.events) == []
    expected = rig.source.load()
    assert load.events == [
        Load(
            num_active=1,
            num_queued=2 + 5,
            queued_prefill_tokens=30 + 70,
            decode_tokens=0,
            used_blocks=expected.used_blocks,
            total_blocks=expected.total_blocks,
            queued_by_rank={0: (2, 30), 2: (3, 40)},
        )
    ]
    assert [
        (b.worker, b.replica, b.dp_rank, b.model, b.block_size) for b in (up, snapshot, load)
    ] == [("r-0", "r", 0, "m", 4)] * 3
    assert [b.seq for b in (up, snapshot, load)] == [0, 1, 2]
    assert {b.epoch for b in (up, snapshot, load)} == {rig.publisher.epoch}


def test_events_of_one_drain_are_one_record_up_to_the_bound() -> None:
    rig = Rig(max_events_per_record=2).started()
    events = [stored(H[0]), stored(H[1], parent=H[0]), Removed(hashes=[H[1]])]
    assert rig.turn(*events) == [events[:2], events[2:]]
    assert rig.turn() == []


def test_load_is_due_every_interval_also_when_idle() -> None:
    rig = Rig(load_interval_s=1.0).started()
    rig.now += 0.9
    assert rig.turn() == []
    rig.now += 0.2
    assert [[type(e) for e in events] for events in rig.turn()] == [[Load]]


def test_snapshots_come_on_request_by_time_and_by_change() -> None:
    rig = Rig(snapshot_interval_s=60.0, snapshot_after_blocks=3).started()
    rig.turn(stored(H[0], H[1]))
    rig.publisher.request_snapshot()
    rig.publisher.request_snapshot()
    assert [snapshot_hashes(events) for events in rig.turn()] == [H[:2]]
    assert rig.turn() == []
    rig.now += 61
    assert [snapshot_hashes(events) for events in rig.turn()] == [H[:2]]
    event = stored(*H[2:5], parent=H[1])
    records = rig.turn(event)
    assert records[0] == [event]
    assert snapshot_hashes(records[1]) == H[:5]


def test_a_lost_record_is_followed_by_lost_and_a_snapshot() -> None:
    rig = Rig().started()
    rig.bus.lose_next(1)
    assert rig.turn(stored(H[0])) == []
    lost, snapshot = rig.turn()
    assert lost == [Lost(reason="record not acknowledged: lost on demand")]
    assert snapshot_hashes(snapshot) == [H[0]]


def test_an_executors_own_loss_is_healed_by_a_snapshot() -> None:
    rig = Rig().started()
    records = rig.turn(stored(H[0]), Lost(reason="buffer full", first=3, last=9))
    assert records[0] == [Lost(reason="the executor lost events")]
    assert snapshot_hashes(records[1]) == [H[0]]


def test_while_the_bus_takes_nothing_only_the_mirror_goes_on() -> None:
    rig = Rig(MemoryBus(max_pending=2)).started()
    rig.bus.take_down()
    for i, block_hash in enumerate(H):
        assert rig.turn(stored(block_hash, parent=H[i - 1] if i else None)) == []
    assert rig.publisher._producer.health().num_pending == 2
    rig.bus.bring_up()
    first = [batch.events for batch in rig.read()]
    assert first == [[stored(H[0])], [stored(H[1], parent=H[0])]]
    lost, snapshot = rig.turn()
    assert [type(e) for e in lost] == [Lost]
    assert snapshot_hashes(snapshot) == H


def test_seq_has_no_hole_among_what_the_log_holds_unless_a_loss_was_told() -> None:
    rig = Rig(MemoryBus(max_pending=2)).started()
    rig.bus.take_down()
    for block_hash in H:
        rig.turn(stored(block_hash))
    rig.bus.bring_up()
    rig.turn()
    reader = rig.bus.reader(rig.bus.topics.kv_events)
    seqs = [decode_batch(record.value).batch.seq for record in reader.poll(0)]
    assert seqs == list(range(len(seqs)))


def test_close_says_worker_down_and_is_idempotent() -> None:
    rig = Rig().started()
    rig.publisher.close("replica stopped", 0.1)
    assert [batch.events for batch in rig.read()] == [[WorkerDown(reason="replica stopped")]]
    rig.publisher.close("again", 0.1)
    assert rig.read() == []


def test_a_stored_event_larger_than_a_record_is_cut() -> None:
    rig = Rig().started()
    hashes = [hex_of(i) for i in range(20_000)]
    records = rig.turn(stored(*hashes))
    assert len(records) > 1
    pieces = [event for events in records for event in events]
    assert [h for piece in pieces for h in piece.hashes] == hashes  # type: ignore[union-attr]
    assert pieces[1].parent == pieces[0].hashes[-1]  # type: ignore[union-attr]


def test_the_thread_publishes_what_the_source_gives() -> None:
    rig = Rig()
    rig.source.events = [stored(H[0])]
    rig.publisher.start()
    try:
        seen: list[Event] = []
        while stored(H[0]) not in seen:
            records = rig.reader.poll(5.0)
            assert records, "nothing was published"
            seen += [e for r in records for e in decode_batch(r.value).batch.events]
        assert rig.publisher.is_alive()
    finally:
        rig.publisher.close("end")
    assert not rig.publisher.is_alive()


def test_a_failing_source_is_told_and_survived(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(load_interval_s=0.01)
    failing = [True]

    def drain_once_badly(timeout_s: float) -> list[Event]:
        if failing.pop() if failing else False:
            raise ValueError("odd event")
        return []

    rig.source.drain_events = drain_once_badly  # type: ignore[method-assign]
    rig.publisher.start()
    try:
        seen: list[Event] = []
        while Lost(reason="publisher failed on an event") not in seen:
            records = rig.reader.poll(5.0)
            assert records, "nothing was published"
            seen += [e for r in records for e in decode_batch(r.value).batch.events]
    finally:
        rig.publisher.close("end")
    assert "odd event" in caplog.text
