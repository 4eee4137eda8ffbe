from __future__ import annotations

import random

import pytest

from controllers.events import Lost, Removed, Stored, Updated, WorkerUp, hex_of
from controllers.mirror import Mirror
from serve_app.engine.event_buffer import MAX_MERGED_HASHES, EventBuffer

UP = WorkerUp(num_blocks={"gpu": 40}, executor="t", version="1", salt_id="s", max_seq_len=64)


def stored(block_hash: int) -> Stored:
    return Stored(parent=None, hashes=[hex_of(block_hash)], num_tokens=[4], retention_priority=[35])


def test_changes_of_one_kind_share_an_event() -> None:
    buffer = EventBuffer(10)
    buffer.removed(1)
    buffer.removed(2)
    buffer.moved(3, "gpu", "host")
    buffer.moved(4, "gpu", "host")
    buffer.moved(4, "host", "gpu")
    buffer.reprioritised(5, 80, 35)
    buffer.reprioritised(6, 80, 35)
    buffer.stored(stored(7))
    buffer.removed(8)
    buffer.flush()
    assert buffer.drain(0) == [
        Updated(hashes=[hex_of(3), hex_of(4)], medium="host", old_medium="gpu"),
        Updated(hashes=[hex_of(4)], medium="gpu", old_medium="host"),
        Updated(hashes=[hex_of(5), hex_of(6)], retention_priority=35, old_retention_priority=80),
        Removed(hashes=[hex_of(1), hex_of(2)]),
        stored(7),
        Removed(hashes=[hex_of(8)]),
    ]


def test_an_event_has_a_largest_size() -> None:
    buffer = EventBuffer(10)
    for block_hash in range(2 * MAX_MERGED_HASHES + 1):
        buffer.removed(block_hash)
    buffer.flush()
    sizes = [len(event.hashes) for event in buffer.drain(0) if isinstance(event, Removed)]
    assert sizes == [MAX_MERGED_HASHES, MAX_MERGED_HASHES, 1]


def test_drained_events_do_not_grow() -> None:
    buffer = EventBuffer(10)
    buffer.removed(1)
    buffer.flush()
    first = buffer.drain(0)
    buffer.removed(2)
    buffer.flush()
    assert first == [Removed(hashes=[hex_of(1)])]
    assert buffer.drain(0) == [Removed(hashes=[hex_of(2)])]


def test_numbers_of_lost_events_go_on() -> None:
    buffer = EventBuffer(2)
    for block_hash in range(5):
        buffer.stored(stored(block_hash))
        buffer.flush()
    assert buffer.drain(0) == [
        Lost(reason="buffer_overflow", first=0, last=2),
        stored(3),
        stored(4),
    ]
    for block_hash in range(5, 8):
        buffer.stored(stored(block_hash))
    buffer.flush()
    assert buffer.drain(0) == [
        Lost(reason="buffer_overflow", first=5, last=5),
        stored(6),
        stored(7),
    ]


def test_a_closed_buffer_gives_what_it_has_and_never_waits() -> None:
    buffer = EventBuffer(2)
    buffer.stored(stored(1))
    buffer.flush()
    buffer.close()
    assert buffer.drain(3600.0) == [stored(1)]
    assert buffer.drain(3600.0) == []


def test_dropped_removals_of_blocks_that_a_reader_knows_are_told() -> None:
    buffer = EventBuffer(2)
    buffer.stored(stored(1))
    buffer.stored(stored(2))
    buffer.flush()
    buffer.drain(0)
    buffer.removed(1)
    buffer.stored(stored(3))  # dropped, and so is its removal
    buffer.removed(3)
    buffer.stored(stored(4))
    buffer.removed(2)
    buffer.stored(stored(1))
    buffer.flush()
    assert buffer.drain(0) == [
        Lost(reason="buffer_overflow", first=2, last=5),
        Removed(hashes=[hex_of(1)]),
        Removed(hashes=[hex_of(2)]),
        stored(1),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_mirror_never_believes_in_a_block_that_is_gone(seed: int) -> None:
    rng = random.Random(seed)
    buffer, mirror, resident = EventBuffer(5), Mirror(), set[int]()
    for _ in range(300):
        if resident and rng.random() < 0.5:
            victim = rng.choice(sorted(resident))
            resident.discard(victim)
            buffer.removed(victim)
        else:
            new = rng.randrange(40)
            if new not in resident:
                resident.add(new)
                buffer.stored(stored(new))
        buffer.flush()
        if rng.random() < 0.05:
            for event in buffer.drain(0):
                mirror.apply(event)
            (part,) = mirror.snapshot(UP, 1, 1000)
            assert set(part.blocks.hashes) <= {hex_of(h) for h in resident}
