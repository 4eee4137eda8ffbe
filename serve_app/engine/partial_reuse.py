"""Reuse of a block's leading tokens only.

Owns the choice between taking the block and copying it. Knows neither sequences nor what follows.
"""

from __future__ import annotations

from serve_app.engine.block import DEFAULT_RETENTION_PRIORITY, HOST, Block
from serve_app.engine.sequence import BlockRetention
from serve_app.engine.tiers import Tiers


class PartialReuse:
    """One for a cache."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers

    def take(
        self, source: Block, num_tokens: int, retention: BlockRetention, now: float
    ) -> tuple[Block, int]:
        """A block in use that starts with `source`'s leading tokens, and how many those are."""
        wanted = DEFAULT_RETENTION_PRIORITY if retention.priority is None else retention.priority
        is_unused_leaf = not source.ref_count and not source.children
        if is_unused_leaf and wanted >= source.retention_priority:
            return self._take_leaf(source, retention, now), num_tokens
        return self._copy(source, num_tokens, retention)

    def _take_leaf(self, leaf: Block, retention: BlockRetention, now: float) -> Block:
        self._tiers.drop(leaf)
        self._tiers.eviction.claim(leaf)
        if leaf.level == HOST:
            self._tiers.onboard(leaf, now)
        leaf.use(*retention)
        return leaf

    def _copy(self, source: Block, num_tokens: int, retention: BlockRetention) -> tuple[Block, int]:
        """Making room may drop the source: its content is lost unless it became the room."""
        priority, duration_s, level = source.retention_priority, source.duration_s, source.level
        block = self._tiers.take_free()
        if source.is_reusable:
            self._tiers.copy(source, block, num_tokens)
        elif source is not block or level == HOST:
            num_tokens = 0
        if retention.priority is None:
            retention = BlockRetention(priority, duration_s)
        block.use(*retention)
        return block, num_tokens
