"""Cache events on their way from the engine's thread to the one that publishes them.

Owns order, merging and the bound. Knows no blocks.

The engine's thread collects the events of one step and hands them over with `flush`; another
thread drains. When more than `size` events wait, the oldest are dropped and a `Lost` that names
their numbers stands in their place, followed by the blocks that were removed in what was dropped:
a reader that misses a stored block loses a hit, one that misses a removal believes in it for ever.

Removals wait for the next stored event or the end of the step and share an event: nothing else
can speak of a block that is gone.
"""

from __future__ import annotations

import threading
from collections import deque

from controllers.events import Event, Lost, Removed, Stored, Updated, hex_of, hexes_of

MAX_MERGED_HASHES = 256  # bounds the size of one event


class EventBuffer:
    """`size` counts events that wait to be drained, not their blocks."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._step: list[Event] = []
        self._removed: list[int] = []  # in this step, not in an event yet
        self._waiting: deque[Event] = deque()
        self._first_id = 0  # number of the oldest waiting event
        self._lost_from: int | None = None
        self._unseen: set[str] = set()  # resident blocks whose stored event was dropped
        self._gone: dict[str, None] = {}  # blocks a reader may know and whose removal was dropped
        self._is_closed = False
        self._changed = threading.Condition()

    def add(self, event: Event) -> None:
        """An event that is complete: nothing is merged into it."""
        self._tell_removed()
        self._step.append(event)

    def stored(self, event: Stored) -> None:
        self._tell_removed()
        self._step.append(event)

    def removed(self, block_hash: int) -> None:
        self._removed.append(block_hash)

    def moved(self, block_hash: int, old_medium: str, medium: str) -> None:
        self._update(block_hash, Updated(hashes=[], medium=medium, old_medium=old_medium))

    def reprioritised(self, block_hash: int, old: int, new: int) -> None:
        event = Updated(hashes=[], retention_priority=new, old_retention_priority=old)
        self._update(block_hash, event)

    def flush(self) -> None:
        """Makes the step's events visible to `drain`."""
        self._tell_removed()
        if not self._step:
            return
        with self._changed:
            self._waiting.extend(self._step)
            self._step = []
            if len(self._waiting) > self._size:
                self._drop_oldest()
            self._changed.notify_all()

    def drain(self, timeout_s: float) -> list[Event]:
        """All flushed events in order; waits for the first one, unless the buffer is closed."""
        with self._changed:
            if not self._waiting and timeout_s > 0 and not self._is_closed:
                self._changed.wait(timeout_s)
            events = list(self._waiting)
            lost_from, self._lost_from = self._lost_from, None
            gone, self._gone, self._unseen = list(self._gone), {}, set()
            first_id = self._first_id
            self._first_id += len(events)
            self._waiting.clear()
        if lost_from is None:
            return events
        lost = Lost(reason="buffer_overflow", first=lost_from, last=first_id - 1)
        return [lost, *([Removed(hashes=gone)] if gone else []), *events]

    def close(self) -> None:
        """No more events will come: a waiting drain returns, and none waits again."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _tell_removed(self) -> None:
        for start in range(0, len(self._removed), MAX_MERGED_HASHES):
            hashes = hexes_of(self._removed[start : start + MAX_MERGED_HASHES])
            self._step.append(Removed(hashes=hashes))
        self._removed.clear()

    def _drop_oldest(self) -> None:
        if self._lost_from is None:
            self._lost_from = self._first_id
        while len(self._waiting) > self._size:
            self._drop(self._waiting.popleft())
            self._first_id += 1

    def _drop(self, event: Event) -> None:
        """Both notes stay within what the cache can hold: a block is in one only while a reader
        must be told of it."""
        if isinstance(event, Stored):
            self._unseen.update(event.hashes)
        elif isinstance(event, Removed):
            for block_hash in event.hashes:
                if block_hash in self._unseen:
                    self._unseen.discard(block_hash)
                else:
                    self._gone[block_hash] = None

    def _update(self, block_hash: int, event: Updated) -> None:
        last = self._step[-1] if self._step else None
        if isinstance(last, Updated) and _same_change(last, event):
            last.hashes.append(hex_of(block_hash))
        else:
            event.hashes.append(hex_of(block_hash))
            self._step.append(event)


def _same_change(a: Updated, b: Updated) -> bool:
    return (
        len(a.hashes) < MAX_MERGED_HASHES
        and a.medium == b.medium
        and a.old_medium == b.old_medium
        and a.retention_priority == b.retention_priority
        and a.old_retention_priority == b.old_retention_priority
    )
