"""What one worker's cache holds, kept beside the executor so that it can be told again at any time.

Owns the copy of the cache's content that snapshots are made of. Does not know the log, sequence
numbers or other workers. Hashes stay hex strings: they only travel through.

1. `removed` drops the block's whole subtree, as the routing table does.
2. A block stored twice is one block; the later values count.
3. A snapshot lists parents before children; blocks whose parent is not resident come last.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from controllers.events import (
    Cleared,
    Event,
    Removed,
    Snapshot,
    SnapshotBlocks,
    Stored,
    Updated,
    WorkerUp,
)

ROOT = ""


class Block(NamedTuple):
    """`parent` is ROOT for the first block of a prefix."""

    parent: str
    medium: str
    retention_priority: int
    tier: str
    num_tokens: int


class Mirror:
    """Apply the executor's events in order; read snapshots."""

    def __init__(self) -> None:
        self._blocks: dict[str, Block] = {}
        self._children: dict[str, list[str]] = {}
        self.num_changed = 0  # blocks touched since the last snapshot

    def __len__(self) -> int:
        return len(self._blocks)

    def apply(self, event: Event) -> None:
        """Events that do not change the cache's content are ignored."""
        if isinstance(event, Stored):
            self._store(event)
        elif isinstance(event, Removed):
            for block_hash in event.hashes:
                self._drop_subtree(block_hash)
        elif isinstance(event, Updated):
            self._update(event)
        elif isinstance(event, (Cleared, WorkerUp)):
            self._blocks.clear()
            self._children.clear()

    def snapshot(self, up: WorkerUp, snapshot_id: int, max_blocks: int) -> list[Snapshot]:
        """The whole state in parts of at most `max_blocks` blocks; one empty part if there is none.

        Resets `num_changed`. Cost: linear in the resident blocks.
        """
        self.num_changed = 0
        ordered = list(self._in_order())
        slices = [ordered[i : i + max_blocks] for i in range(0, len(ordered), max_blocks)] or [[]]
        return [
            Snapshot(
                snapshot_id=snapshot_id,
                part=part,
                num_parts=len(slices),
                blocks=self._columns(hashes),
                num_blocks=up.num_blocks,
                max_seq_len=up.max_seq_len,
                salt_id=up.salt_id,
                executor=up.executor,
                version=up.version,
            )
            for part, hashes in enumerate(slices)
        ]

    def _store(self, event: Stored) -> None:
        parent = event.parent or ROOT
        rows = zip(event.hashes, event.num_tokens, event.retention_priority, strict=True)
        for block_hash, num_tokens, retention_priority in rows:
            if block_hash not in self._blocks:
                self._children.setdefault(parent, []).append(block_hash)
            self._blocks[block_hash] = Block(
                parent, event.medium, retention_priority, event.tier, num_tokens
            )
            parent = block_hash
        self.num_changed += len(event.hashes)

    def _update(self, event: Updated) -> None:
        for block_hash in event.hashes:
            block = self._blocks.get(block_hash)
            if block is None:
                continue
            if event.medium is not None:
                block = block._replace(medium=event.medium)
            if event.retention_priority is not None:
                block = block._replace(retention_priority=event.retention_priority)
            self._blocks[block_hash] = block
        self.num_changed += len(event.hashes)

    def _drop_subtree(self, block_hash: str) -> None:
        block = self._blocks.get(block_hash)
        if block is None:
            return
        siblings = self._children.get(block.parent)
        if siblings is not None:
            siblings.remove(block_hash)
            if not siblings:
                del self._children[block.parent]
        pending = [block_hash]
        while pending:
            current = pending.pop()
            pending.extend(self._children.pop(current, ()))
            del self._blocks[current]
            self.num_changed += 1

    def _in_order(self) -> Iterator[str]:
        """Parents first, from the root; then subtrees whose top's parent is not resident."""
        tops = [parent for parent in self._children if parent not in self._blocks]
        tops.sort(key=lambda parent: parent != ROOT)  # stable: the root's children come first
        pending = [child for top in reversed(tops) for child in reversed(self._children[top])]
        while pending:
            current = pending.pop()
            yield current
            pending.extend(reversed(self._children.get(current, ())))

    def _columns(self, hashes: list[str]) -> SnapshotBlocks:
        rows = [self._blocks[block_hash] for block_hash in hashes]
        return SnapshotBlocks(
            hashes=hashes,
            parents=[row.parent for row in rows],
            mediums=[row.medium for row in rows],
            retention_priority=[row.retention_priority for row in rows],
            tiers=[row.tier for row in rows],
            num_tokens=[row.num_tokens for row in rows],
        )
