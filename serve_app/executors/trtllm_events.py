"""TensorRT-LLM's cache events of one rank -> ours, with our hashes.

Owns the mirror that knows each block under both names, and what holes in the engine's history mean
(`trtllm_evidence` heals them). Fed by one thread. Knows no engine object and no clock.

1. A block is told once and removed once. `removed` takes the whole subtree, whether the engine
   names the descendants (1.2) or leaves them out (1.3); later mentions of them are no news.
2. Only the largest attention window counts; events of others only advance the numbering.
3. A gap in the event ids is a `Lost` at its place. What was known before it is suspect from then on
   and goes as soon as a request shows that it is not there, or the cache cannot hold it. So are
   the blocks of which one may have been taken when a request reused a part of a block. Blocks
   that were lost are learned from the requests that reuse them, where it is known how the engine
   hashes: a prefix that is always in use is stored, and told, only once.
4. A block whose parent is not known waits for it. A block whose namespace cannot be told, that
   holds more than text, or whose tokens do not fit, is left out with all below it, and counted.
5. A partial block whose continuation is stored under the same parent has been used up by it: the
   engine says nothing of that.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from controllers.errors import EventError
from controllers.events import Event
from serve_app.executors.trtllm_evidence import Evidence
from serve_app.executors.trtllm_json import (
    RawBlock,
    RawCreated,
    RawRemoved,
    RawStored,
    RawUpdated,
    parse,
)
from serve_app.executors.trtllm_naming import Naming
from serve_app.executors.trtllm_requests import Prompt, Requests
from serve_app.executors.trtllm_telling import Telling, Waiting
from serve_app.executors.trtllm_tree import BlockTree, Node

logger = logging.getLogger(__name__)


class Counts(msgspec.Struct):
    """Since the start. Blocks, unless it says events."""

    num_lost_events: int = 0
    num_unreadable_events: int = 0
    num_orphan_events: int = 0  # waited for a parent in vain
    num_left_out: int = 0  # resident, but without a hash of ours
    num_healed: int = 0  # believed in, and found not to be there
    num_learned: int = 0  # found to be there, though nobody told


class EventTranslator:
    """Takes one rank's events in their order."""

    def __init__(self, block_size: int, requests: Requests) -> None:
        self.num_blocks: dict[str, int] = {}  # medium -> capacity; empty until the engine said it
        self._block_size = block_size
        self._naming = Naming(block_size, requests)
        self._counts = Counts()
        self._tree = BlockTree()
        self._waiting = Waiting()
        self._telling = Telling()
        self._windows: set[tuple[int, int]] = set()
        self._next_id = 0
        self._now = 0.0
        self._evidence = Evidence(self._tree, self._naming, self._heal)

    @property
    def counts(self) -> Counts:
        return msgspec.structs.replace(self._counts, num_orphan_events=self._waiting.num_dropped)

    @property
    def cached_blocks(self) -> dict[str, int]:
        """Medium -> blocks that were told and not removed."""
        return dict(self._tree.num_by_medium)

    def overlap(self, hashes: Sequence[int]) -> int:
        """How many blocks from the start of a prompt are resident. Any thread."""
        for index, ours in enumerate(hashes):
            if self._tree.by_ours(ours) is None:
                return index
        return len(hashes)

    def translate(
        self, raw_events: Iterable[Mapping[str, Any] | None], now: float = 0.0
    ) -> list[Event]:
        """Empty items are passed over, as the engine's own readers do."""
        self._now = now
        for raw in raw_events:
            if raw:
                self._apply(raw)
        self._evidence.drop_surplus(self.num_blocks)
        return self._telling.take()

    def reused(
        self,
        hashes: Sequence[int],
        num_cached_tokens: int,
        asked_at: float = math.inf,
        prompt: Prompt | None = None,
    ) -> list[Event]:
        """What a request found in the cache is the truth. `hashes` are of the blocks that it could
        have reused. With more than one window the engine may reuse less than it has."""
        if len(self._windows) > 1:
            return []
        num_found, num_partial_tokens = divmod(num_cached_tokens, self._block_size)
        self._evidence.judge(hashes, num_found, asked_at)
        if prompt is not None:
            self._evidence.learn(hashes[:num_found], prompt, self._now, self._adopt)
        if num_partial_tokens and num_found <= len(hashes):
            parent = self._tree.by_ours(hashes[num_found - 1]) if num_found else None
            if parent is not None or not num_found:
                self._evidence.part_reused(parent)
        return self._telling.take()

    def _adopt(self, node: Node) -> None:
        """A block that is there though nobody told, and what waited for it."""
        self._tree.add(node)
        self._telling.stored(node)
        self._counts.num_learned += 1
        for waiting in self._waiting.take(node.engine_hash):
            self._on_stored(waiting)

    def hide_all(self) -> None:
        """What is resident now was stored by nobody who would ask for it: it is left out."""
        self._tree.hide_all()

    def _apply(self, raw: Mapping[str, Any]) -> None:
        try:
            event = parse(raw)
        except EventError as error:
            self._on_unreadable(error)
            return
        self._check_id(event.event_id, isinstance(event.data, RawCreated))
        if not self._is_counted(event.window):
            return
        if isinstance(event.data, RawStored):
            self._on_stored(event.data)
        elif isinstance(event.data, RawRemoved):
            self._on_removed(event.data)
        elif isinstance(event.data, RawUpdated):
            self._on_updated(event.data)
        else:
            self.num_blocks = event.data.num_blocks

    def _on_unreadable(self, error: EventError) -> None:
        if not self._counts.num_unreadable_events:
            logger.error("%s; the history has a hole here", error)
        self._counts.num_unreadable_events += 1
        self._lose("unreadable_event", self._next_id, self._next_id)
        self._next_id += 1

    def _check_id(self, event_id: int, is_created: bool) -> None:
        if event_id > self._next_id:
            self._counts.num_lost_events += event_id - self._next_id
            self._lose("engine_buffer_overflow", self._next_id, event_id - 1)
        elif event_id < self._next_id and is_created and event_id == 0:
            self._clear()  # the engine made its cache anew
        elif event_id < self._next_id:
            self._lose("event_ids_went_back", None, None)
        self._next_id = event_id + 1

    def _lose(self, reason: str, first: int | None, last: int | None) -> None:
        self._telling.lost(reason, first, last)
        self._waiting.clear()
        self._evidence.lost()

    def _is_counted(self, window: tuple[int, int]) -> bool:
        is_larger = bool(self._windows) and window > max(self._windows)
        if is_larger and len(self._tree):  # a smaller window was taken for the one that counts
            self._clear()
        self._windows.add(window)
        return window == max(self._windows)

    def _clear(self) -> None:
        if any(self._tree.num_by_medium.values()):
            self._telling.cleared()
        self._tree.clear()
        self._waiting.clear()
        self._windows.clear()
        self._evidence.clear()

    def _on_stored(self, data: RawStored) -> None:
        pending = [data]
        while pending:
            stored = pending.pop()
            if self._store(stored):
                for block in stored.blocks:
                    pending.extend(reversed(self._waiting.take(block.engine_hash)))

    def _store(self, data: RawStored) -> bool:
        """False: it waits for its parent."""
        parent = None if data.parent is None else self._tree.get(data.parent)
        if data.parent is not None and parent is None:
            self._waiting.add(data.parent, data)
            return False
        for raw in data.blocks:
            known = self._tree.get(raw.engine_hash)
            if known is None:
                parent = self._add(raw, parent)
            else:
                parent = known
                known.is_suspect, known.stored_at = False, self._now
                self._update(known, raw.medium, raw.retention_priority)
        return True

    def _add(self, raw: RawBlock, parent: Node | None) -> Node:
        node = self._naming.node_of(raw, parent, self._now)
        for partial in self._tree.partials_of(parent):
            if node.num_tokens > partial.num_tokens and _continues(raw, partial):
                self._telling.removed(self._tree.drop(partial))
        self._tree.add(node)
        if node.ours is None:
            self._counts.num_left_out += 1
        else:
            self._telling.stored(node)
        return node

    def _on_removed(self, data: RawRemoved) -> None:
        for engine_hash in data.hashes:
            node = self._tree.get(engine_hash)
            if node is not None:
                self._telling.removed(self._tree.drop(node))
            self._waiting.forget_below(engine_hash)

    def _on_updated(self, data: RawUpdated) -> None:
        node = self._tree.get(data.engine_hash)
        if node is not None:
            self._update(node, data.medium, data.retention_priority)

    def _update(self, node: Node, medium: str | None, retention_priority: int | None) -> None:
        medium = None if medium == node.medium else medium
        if retention_priority == node.retention_priority:
            retention_priority = None
        if node.ours is not None and (medium is not None or retention_priority is not None):
            self._telling.updated(node, medium, retention_priority)
        if medium is not None:
            self._tree.move(node, medium)
        if retention_priority is not None:
            node.retention_priority = retention_priority

    def _heal(self, node: Node) -> None:
        dropped = self._tree.drop(node)
        self._counts.num_healed += len(dropped)
        self._telling.removed(dropped)


def _continues(raw: RawBlock, partial: Node) -> bool:
    return (raw.tokens or ())[: partial.num_tokens] == partial.tokens
