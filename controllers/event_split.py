"""Cuts a list of events into pieces that fit into one record each.

Does not know bytes: a record is bounded by its events and by its block hashes.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from controllers.events import Event, Removed, Stored, Updated


def split_events(events: list[Event], max_events: int, max_hashes: int) -> Iterator[list[Event]]:
    """Non-empty groups in order; an event with more than max_hashes hashes becomes several."""
    group: list[Event] = []
    num_hashes = 0
    for event in events:
        for piece in _pieces(event, max_hashes):
            size = len(getattr(piece, "hashes", ()))
            if group and (len(group) == max_events or num_hashes + size > max_hashes):
                yield group
                group, num_hashes = [], 0
            group.append(piece)
            num_hashes += size
    if group:
        yield group


def _pieces(event: Event, max_hashes: int) -> Iterator[Event]:
    if not isinstance(event, (Stored, Removed, Updated)) or len(event.hashes) <= max_hashes:
        yield event
        return
    for i in range(0, len(event.hashes), max_hashes):
        part = slice(i, i + max_hashes)
        if isinstance(event, Stored):
            yield msgspec.structs.replace(
                event,
                parent=event.hashes[i - 1] if i else event.parent,
                hashes=event.hashes[part],
                num_tokens=event.num_tokens[part],
                retention_priority=event.retention_priority[part],
            )
        else:
            yield msgspec.structs.replace(event, hashes=event.hashes[part])
