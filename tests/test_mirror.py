from __future__ import annotations

from controllers.events import (
    Cleared,
    Load,
    Removed,
    SnapshotBlocks,
    Stored,
    Updated,
    WorkerUp,
    hex_of,
)
from controllers.mirror import Mirror

UP = WorkerUp(num_blocks={"gpu": 8}, executor="scripted", version="1", salt_id="s", max_seq_len=64)
A, B, C, D, X = (hex_of(i) for i in (1, 2, 3, 4, 9))


def stored(*hashes: str, parent: str | None = None, **fields: object) -> Stored:
    values = {
        "num_tokens": [4] * len(hashes),
        "retention_priority": [35] * len(hashes),
        **fields,
    }
    return Stored(parent=parent, hashes=list(hashes), **values)  # type: ignore[arg-type]


def hashes_of(mirror: Mirror) -> list[str]:
    return [h for part in mirror.snapshot(UP, 1, 100) for h in part.blocks.hashes]


def mediums(mirror: Mirror) -> list[str]:
    return [medium for part in mirror.snapshot(UP, 1, 100) for medium in part.blocks.mediums]


def test_snapshot_tells_every_column_parents_first() -> None:
    mirror = Mirror()
    mirror.apply(stored(A, B, retention_priority=[100, 80], tier="chat"))
    mirror.apply(stored(C, parent=A, num_tokens=[2]))
    mirror.apply(Updated(hashes=[B], medium="host", old_medium="gpu"))
    (part,) = mirror.snapshot(UP, 7, 100)
    assert (part.snapshot_id, part.part, part.num_parts) == (7, 0, 1)
    assert (part.num_blocks, part.max_seq_len, part.salt_id) == ({"gpu": 8}, 64, "s")
    assert part.blocks == SnapshotBlocks(
        hashes=[A, B, C],
        parents=["", A, A],
        mediums=["gpu", "host", "gpu"],
        retention_priority=[100, 80, 35],
        tiers=["chat", "chat", "default"],
        num_tokens=[4, 4, 2],
    )


def test_removed_drops_the_subtree_and_unknown_hashes_do_nothing() -> None:
    mirror = Mirror()
    mirror.apply(stored(A, B, C))
    mirror.apply(stored(D, parent=A))
    mirror.apply(Removed(hashes=[B, X]))
    assert hashes_of(mirror) == [A, D]
    mirror.apply(Removed(hashes=[A]))
    assert (len(mirror), hashes_of(mirror)) == (0, [])


def test_a_block_stored_twice_is_one_block() -> None:
    mirror = Mirror()
    mirror.apply(stored(A, B))
    mirror.apply(stored(A, B, retention_priority=[90, 90]))
    (part,) = mirror.snapshot(UP, 1, 100)
    assert (part.blocks.hashes, part.blocks.retention_priority) == ([A, B], [90, 90])
    mirror.apply(Removed(hashes=[A]))
    assert len(mirror) == 0


def test_blocks_without_a_resident_parent_come_last() -> None:
    mirror = Mirror()
    mirror.apply(stored(C, D, parent=X))
    mirror.apply(stored(A))
    assert hashes_of(mirror) == [A, C, D]
    mirror.apply(stored(X, parent=A))
    assert hashes_of(mirror) == [A, X, C, D]


def test_parts_cover_all_blocks_and_an_empty_cache_is_one_empty_part() -> None:
    mirror = Mirror()
    assert [p.blocks.hashes for p in mirror.snapshot(UP, 1, 2)] == [[]]
    mirror.apply(stored(A, B, C))
    parts = mirror.snapshot(UP, 2, 2)
    assert [(p.part, p.num_parts, p.blocks.hashes) for p in parts] == [
        (0, 2, [A, B]),
        (1, 2, [C]),
    ]


def test_cleared_and_worker_up_empty_it_and_load_does_not() -> None:
    for event in (Cleared(), UP):
        mirror = Mirror()
        mirror.apply(stored(A, B))
        mirror.apply(
            Load(
                num_active=0,
                num_queued=0,
                queued_prefill_tokens=0,
                decode_tokens=0,
                used_blocks={},
                total_blocks={},
            )
        )
        assert len(mirror) == 2
        mirror.apply(event)
        assert (len(mirror), mediums(mirror)) == (0, [])


def test_num_changed_counts_until_the_next_snapshot() -> None:
    mirror = Mirror()
    mirror.apply(stored(A, B))
    mirror.apply(Updated(hashes=[A], retention_priority=10))
    mirror.apply(Removed(hashes=[A]))
    assert mirror.num_changed == 5
    mirror.snapshot(UP, 1, 10)
    assert mirror.num_changed == 0


def test_a_block_is_where_it_was_moved_to() -> None:
    mirror = Mirror()
    mirror.apply(stored(A, B))
    mirror.apply(Updated(hashes=[B, X], medium="host"))
    assert mediums(mirror) == ["gpu", "host"]
