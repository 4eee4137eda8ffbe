from __future__ import annotations

from controllers.event_split import split_events
from controllers.events import Cleared, Removed, Stored, hex_of

H = [hex_of(i) for i in range(10)]


def test_no_events_no_groups() -> None:
    assert list(split_events([], 3, 10)) == []


def test_a_group_holds_at_most_max_events() -> None:
    events = [Cleared()] * 5
    assert [len(group) for group in split_events(events, 2, 10)] == [2, 2, 1]


def test_a_group_holds_at_most_max_hashes() -> None:
    events = [Removed(hashes=H[:2]), Removed(hashes=H[2:4]), Removed(hashes=H[4:5])]
    assert list(split_events(events, 10, 4)) == [events[:2], events[2:]]


def test_a_long_stored_event_becomes_a_chain() -> None:
    event = Stored(
        parent=H[9],
        hashes=H[:5],
        num_tokens=[4, 4, 4, 4, 3],
        retention_priority=[90, 80, 70, 60, 50],
        tier="chat",
    )
    groups = list(split_events([event], 10, 2))
    assert [e for group in groups for e in group] == [
        Stored(
            parent=H[9], hashes=H[:2], num_tokens=[4, 4], retention_priority=[90, 80], tier="chat"
        ),
        Stored(
            parent=H[1], hashes=H[2:4], num_tokens=[4, 4], retention_priority=[70, 60], tier="chat"
        ),
        Stored(parent=H[3], hashes=H[4:5], num_tokens=[3], retention_priority=[50], tier="chat"),
    ]
    assert [len(group) for group in groups] == [1, 1, 1]


def test_a_long_removed_event_keeps_its_order() -> None:
    groups = list(split_events([Removed(hashes=H)], 10, 4))
    assert [e.hashes for group in groups for e in group] == [H[:4], H[4:8], H[8:]]  # type: ignore[union-attr]
