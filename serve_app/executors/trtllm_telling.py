"""Changes of a block tree -> our events, in order and with as few of them as possible.

Owns the merging: consecutive new blocks of a prefix are one `Stored`, consecutive removals one
`Removed`, equal updates one `Updated`. Knows nothing of where the changes come from. Beside it,
what waits for a parent.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from controllers.events import Cleared, Event, Lost, Removed, Stored, Updated, hex_of, hexes_of
from serve_app.executors.trtllm_json import RawStored
from serve_app.executors.trtllm_tree import EngineHash, Node

MAX_WAITING = 4096  # events


class Telling:
    """Call in the order of the changes, with a node as it is before an update."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._run: list[Node] = []  # new blocks, each the parent of the next

    def take(self) -> list[Event]:
        self._end_run()
        events, self._events = self._events, []
        return events

    def stored(self, node: Node) -> None:
        last = self._run[-1] if self._run else None
        if last is not None and (
            last is not node.parent or last.medium != node.medium or last.label != node.label
        ):
            self._end_run()
        self._run.append(node)

    def removed(self, dropped: list[int]) -> None:
        if not dropped:
            return
        self._end_run()
        last = self._events[-1] if self._events else None
        if isinstance(last, Removed):
            last.hashes.extend(hexes_of(dropped))
        else:
            self._events.append(Removed(hashes=hexes_of(dropped)))

    def updated(self, node: Node, medium: str | None, retention_priority: int | None) -> None:
        """None: unchanged."""
        assert node.ours is not None
        self._end_run()
        is_moved, is_changed = medium is not None, retention_priority is not None
        event = Updated(
            hashes=[hex_of(node.ours)],
            medium=medium,
            old_medium=node.medium if is_moved else None,
            retention_priority=retention_priority,
            old_retention_priority=node.retention_priority if is_changed else None,
        )
        last = self._events[-1] if self._events else None
        if isinstance(last, Updated) and _without_hashes(last) == _without_hashes(event):
            last.hashes.extend(event.hashes)
        else:
            self._events.append(event)

    def lost(self, reason: str, first: int | None, last: int | None) -> None:
        self._end_run()
        self._events.append(Lost(reason=reason, first=first, last=last))

    def cleared(self) -> None:
        self._end_run()
        self._events.append(Cleared())

    def _end_run(self) -> None:
        nodes, self._run = self._run, []
        if not nodes:
            return
        parent = nodes[0].parent
        self._events.append(
            Stored(
                parent=None if parent is None or parent.ours is None else hex_of(parent.ours),
                hashes=[hex_of(node.ours) for node in nodes if node.ours is not None],
                num_tokens=[node.num_tokens for node in nodes],
                retention_priority=[node.retention_priority for node in nodes],
                medium=nodes[0].medium,
                tier=nodes[0].label.tier,
                tenant=nodes[0].label.tenant,
            )
        )


class Waiting:
    """Stored events by the parent they lack; the oldest go when there are many."""

    def __init__(self) -> None:
        self.num_dropped = 0
        self._num_events = 0
        self._parent_to_events: OrderedDict[EngineHash, list[RawStored]] = OrderedDict()

    def __len__(self) -> int:
        return self._num_events

    def add(self, parent: EngineHash, event: RawStored) -> None:
        self._parent_to_events.setdefault(parent, []).append(event)
        self._num_events += 1
        if self._num_events > MAX_WAITING:
            self.num_dropped += len(self.take(next(iter(self._parent_to_events))))

    def take(self, parent: EngineHash) -> list[RawStored]:
        """Those that waited for it, in order."""
        events = self._parent_to_events.pop(parent, [])
        self._num_events -= len(events)
        return events

    def forget_below(self, parent: EngineHash) -> None:
        """A block that left takes along what waits below it."""
        pending = [parent]
        while pending and self._parent_to_events:
            for event in self.take(pending.pop()):
                self.num_dropped += 1
                pending.extend(block.engine_hash for block in event.blocks)

    def clear(self) -> None:
        self.num_dropped += self._num_events
        self._num_events = 0
        self._parent_to_events.clear()


def _without_hashes(event: Updated) -> Updated:
    return msgspec.structs.replace(event, hashes=[])
