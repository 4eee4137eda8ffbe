"""Which sequence uses which block, what it may reuse, and what it leaves behind.

Owns allocation, reuse, retention and the stored events; `Tiers` finds room. Knows neither the model
nor the order in which sequences run. The semantics are TensorRT-LLM's (V1 cache manager).

1. At most len - 1 prompt tokens are reused: the last one's logits are needed.
2. Reuse takes whole blocks, then perhaps leading tokens of one more: an unused leaf is taken
   privately, any other is copied. A block with a higher retention priority than the taker's is
   always copied, so that a one-off request cannot destroy what was to be kept.
3. A retention given by a request overrides the priority of the blocks it reuses; the duration is
   always overwritten, by none if none is given.
4. Computed prompt blocks become reusable when they are full, all others when the sequence ends.
5. A sequence gives its blocks back tail first, so that a prefix outlives what follows it.
6. Every change is an event; a dropped block takes its descendants along, each with its event.
"""

from __future__ import annotations

from serve_app.engine.block import DEFAULT_RETENTION_PRIORITY, GPU, HOST, Block
from serve_app.engine.event_buffer import EventBuffer
from serve_app.engine.prefix_store import PrefixStore
from serve_app.engine.reuse_tree import Match
from serve_app.engine.sequence import BlockRetention, Sequence
from serve_app.engine.tiers import Storage, Tiers


class BlockManager:
    """`now` is in seconds of any monotonic clock, the same in every call."""

    def __init__(
        self,
        *,
        block_size: int,
        num_gpu_blocks: int,
        storage: Storage,
        events: EventBuffer,
        num_host_blocks: int = 0,
        min_offload_priority: int = 30,
    ) -> None:
        self.block_size = block_size
        self.num_blocks = {"gpu": num_gpu_blocks, "host": num_host_blocks}
        self.num_reused_blocks = 0
        self.num_new_blocks = 0
        self._events = events
        self._tiers = Tiers(
            block_size=block_size,
            num_gpu_blocks=num_gpu_blocks,
            num_host_blocks=num_host_blocks,
            storage=storage,
            events=events,
            min_offload_priority=min_offload_priority,
        )
        self._tree = self._tiers.tree
        self._store = PrefixStore(self._tree, events, block_size)
        self._eviction = self._tiers.eviction

    @property
    def num_free_blocks(self) -> int:
        """Gpu blocks that no sequence uses, reusable ones included."""
        return self._eviction.num_free(GPU)

    @property
    def used_blocks(self) -> dict[str, int]:
        """Gpu: blocks of live sequences. Host: blocks with content."""
        num_gpu = self.num_blocks["gpu"] - self.num_free_blocks
        return {"gpu": num_gpu, "host": self.cached_blocks["host"]}

    @property
    def cached_blocks(self) -> dict[str, int]:
        """Blocks of live sequences and reusable ones."""
        return {
            "gpu": self.num_blocks["gpu"] - self._eviction.num_empty(GPU),
            "host": self.num_blocks["host"] - self._eviction.num_empty(HOST),
        }

    def num_cached_tokens(self, seq: Sequence) -> int:
        """Tokens that allocate() would reuse now. Changes nothing."""
        match = self._match(seq)
        return len(match.full) * self.block_size + match.num_partial_tokens

    def can_allocate(self, seq: Sequence, num_spare: int = 0) -> bool:
        """Whether allocate() would succeed."""
        return self._fits(seq, self._match(seq), num_spare)

    def allocate(self, seq: Sequence, now: float, num_spare: int = 0) -> bool:
        """Blocks for all present tokens of a sequence, reused where possible.

        Sets `num_cached` and `num_computed`. False, and nothing changed, when fewer than
        `num_spare` blocks would stay free.
        """
        match = self._match(seq)
        if not self._fits(seq, match, num_spare):
            return False
        for index, block in enumerate(match.full):
            self._use(block, seq.retention_of(index))
        for block in match.full:
            if block.level == HOST:
                self._tiers.onboard(block, now)
        blocks = list(match.full)
        num_cached = len(blocks) * self.block_size
        if match.partial is not None and match.partial.is_reusable:
            block, num_tokens = self._reuse_partial(seq, match, now)
            blocks.append(block)
            num_cached += num_tokens
        seq.set_blocks(blocks)
        self.num_reused_blocks += len(blocks)
        seq.num_stored_blocks = len(match.full)
        seq.num_cached = seq.num_computed = num_cached
        return self.grow(seq, len(seq.tokens))

    def grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Blocks for the first `num_tokens` tokens. False, and nothing changed, without room."""
        num_missing = -(-num_tokens // self.block_size) - len(seq.blocks)
        if num_missing <= 0:
            return True
        if num_missing > self.num_free_blocks:
            return False
        for _ in range(num_missing):
            block = self._tiers.take_free()
            block.retention_priority = DEFAULT_RETENTION_PRIORITY
            self._own(block, seq.retention_of(len(seq.blocks)))
            seq.add_block(block)
        self.num_new_blocks += num_missing
        return True

    def store_full(self, seq: Sequence, num_tokens: int) -> None:
        """Makes the full blocks of the first `num_tokens` tokens reusable; they are computed."""
        self._store.store(seq, num_tokens - num_tokens % self.block_size)

    def free(self, seq: Sequence, now: float, num_tokens: int | None = None) -> None:
        """Takes all blocks from a sequence; its first `num_tokens` tokens stay reusable.

        `num_tokens` None: all computed ones. Those must be computed.
        """
        self._store.store(seq, seq.num_computed if num_tokens is None else num_tokens)
        for block in reversed(seq.blocks):
            block.ref_count -= 1
            if not block.ref_count:
                self._eviction.release(block, now)
        seq.set_blocks([])
        seq.num_stored_blocks = seq.num_computed = 0

    def expire(self, now: float) -> None:
        """Blocks whose duration is over fall to the default priority. Once a step."""
        for block, old in self._eviction.expire(now):
            if block.block_hash is not None and old != DEFAULT_RETENTION_PRIORITY:
                self._events.reprioritised(block.block_hash, old, DEFAULT_RETENTION_PRIORITY)

    def reusable_blocks(self) -> list[Block]:
        """Every block in the reuse tree, parents first. For tests and inspection."""
        return list(self._tree.blocks())

    def _match(self, seq: Sequence) -> Match:
        return self._tree.match(seq.request.salt, seq.token_bytes(0, len(seq.tokens) - 1))

    def _fits(self, seq: Sequence, match: Match, num_spare: int) -> bool:
        num_needed = -(-len(seq.tokens) // self.block_size)
        num_shared = sum(block.ref_count > 0 for block in match.full)
        return num_needed - num_shared + num_spare <= self.num_free_blocks

    def _use(self, block: Block, retention: BlockRetention) -> None:
        """One more user of a reusable block."""
        if not block.ref_count:
            self._eviction.claim(block)
        old = block.retention_priority
        self._own(block, retention)
        if block.retention_priority != old:
            assert block.block_hash is not None
            self._events.reprioritised(block.block_hash, old, block.retention_priority)

    def _own(self, block: Block, retention: BlockRetention) -> None:
        block.ref_count += 1
        block.duration_s = retention.duration_s
        if retention.priority is not None:
            block.retention_priority = retention.priority

    def _reuse_partial(self, seq: Sequence, match: Match, now: float) -> tuple[Block, int]:
        """A private block that starts with `match`'s partial tokens, and how many those are."""
        source = match.partial
        assert source is not None
        retention = seq.retention_of(len(match.full))
        wanted = DEFAULT_RETENTION_PRIORITY if retention.priority is None else retention.priority
        is_unused_leaf = not source.ref_count and not source.children
        if is_unused_leaf and wanted >= source.retention_priority:
            return self._take_leaf(source, retention, now), match.num_partial_tokens
        old_priority, old_duration_s, old_level = (
            source.retention_priority,
            source.duration_s,
            source.level,
        )
        block = self._tiers.take_free()
        num_tokens = match.num_partial_tokens
        if source.is_reusable:
            self._tiers.copy(source, block, num_tokens)
        elif source is not block or old_level == HOST:  # dropped to make room for its own copy
            num_tokens = 0
        block.retention_priority = old_priority
        has_own = retention.priority is not None
        self._own(block, retention if has_own else BlockRetention(None, old_duration_s))
        return block, num_tokens

    def _take_leaf(self, leaf: Block, retention: BlockRetention, now: float) -> Block:
        self._tiers.drop(leaf)
        self._eviction.claim(leaf)
        if leaf.level == HOST:
            self._tiers.onboard(leaf, now)
        self._own(leaf, retention)
        return leaf
