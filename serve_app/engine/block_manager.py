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
7. With a sliding window a sequence gives a block back when no later token attends to it. It is
   stored first; when it is lost, what follows it in the sequence can no longer be stored.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from serve_app.engine.block import DEFAULT_RETENTION_PRIORITY, GPU, HOST, Block
from serve_app.engine.event_sink import EventSink
from serve_app.engine.partial_reuse import PartialReuse
from serve_app.engine.pins import Pins
from serve_app.engine.prefix_store import PrefixStore
from serve_app.engine.reuse_tree import Match
from serve_app.engine.sequence import BlockRetention, Sequence
from serve_app.engine.tiers import Storage, Tiers


class BlockManager:
    """See CacheManager. `window`: tokens that a token attends to, itself included; None: all.

    `min_offload_priority`: blocks below it are dropped instead of moved to the host.
    """

    def __init__(
        self,
        *,
        block_size: int,
        num_gpu_blocks: int,
        storage: Storage,
        events: EventSink,
        num_host_blocks: int = 0,
        min_offload_priority: int = 30,
        window: int | None = None,
    ) -> None:
        self.block_size = block_size
        self.num_blocks = {"gpu": num_gpu_blocks, "host": num_host_blocks}
        self.window = window
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
        self._partial = PartialReuse(self._tiers)
        self._pins = Pins()

    @property
    def num_free_blocks(self) -> int:
        """Gpu blocks that no sequence uses, reusable ones included."""
        return self._eviction.num_free(GPU)

    @property
    def used_blocks(self) -> dict[str, int]:
        """See CacheManager."""
        num_gpu = self.num_blocks["gpu"] - self.num_free_blocks
        return {"gpu": num_gpu, "host": self.cached_blocks["host"]}

    @property
    def cached_blocks(self) -> dict[str, int]:
        """See CacheManager."""
        return {
            "gpu": self.num_blocks["gpu"] - self._eviction.num_empty(GPU),
            "host": self.num_blocks["host"] - self._eviction.num_empty(HOST),
        }

    def num_cached_tokens(self, seq: Sequence) -> int:
        """See CacheManager."""
        match = self._match(seq)
        return len(match.full) * self.block_size + match.num_partial_tokens

    def can_allocate(self, seq: Sequence, num_spare: int = 0) -> bool:
        """Whether allocate() would succeed."""
        return self._fits(seq, self._match(seq), num_spare)

    def allocate(self, seq: Sequence, now: float, num_spare: int = 0) -> bool:
        """See CacheManager."""
        match = self._match(seq)
        if not self._fits(seq, match, num_spare):
            return False
        for index, block in enumerate(match.full):
            self._share(block, seq.retention_of(index))
        for block in match.full:
            if block.level == HOST:
                self._tiers.onboard(block, now)
        blocks = list(match.full)
        num_cached = len(blocks) * self.block_size
        if match.partial is not None and match.partial.is_reusable:
            block, num_tokens = self._partial.take(
                match.partial, match.num_partial_tokens, seq.retention_of(len(blocks)), now
            )
            blocks.append(block)
            num_cached += num_tokens
        seq.set_blocks(blocks)
        self.num_reused_blocks += len(blocks)
        seq.num_stored_blocks = len(match.full)
        seq.num_cached = seq.num_computed = num_cached
        return self.grow(seq, len(seq.tokens))

    def can_grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Whether grow() would succeed."""
        return self._num_missing(seq, num_tokens) <= self.num_free_blocks

    def grow(self, seq: Sequence, num_tokens: int) -> bool:
        """See CacheManager."""
        num_missing = self._num_missing(seq, num_tokens)
        if num_missing <= 0:
            return True
        if num_missing > self.num_free_blocks:
            return False
        for _ in range(num_missing):
            block = self._tiers.take_free()
            block.retention_priority = DEFAULT_RETENTION_PRIORITY
            block.use(*seq.retention_of(len(seq.blocks)))
            seq.add_block(block)
        self.num_new_blocks += num_missing
        return True

    def slide(self, seq: Sequence, now: float) -> None:
        """See CacheManager. Call it before the next token is computed."""
        if self.window is None:
            return
        num_behind = max(0, seq.num_computed + 1 - self.window) // self.block_size
        if num_behind <= seq.num_detached:
            return
        self.store_full(seq, num_behind * self.block_size)
        for block in seq.blocks[seq.num_detached : num_behind]:
            self._release(block, now)
        seq.num_detached = num_behind

    def is_storable(self, seq: Sequence) -> bool:
        """False when a block that left a sequence's window was lost since: its tokens that are not
        stored yet never will be. For tests and inspection."""
        return self._store.is_storable(seq)

    def store_full(self, seq: Sequence, num_tokens: int) -> None:
        """See CacheManager."""
        self._store.store(seq, num_tokens - num_tokens % self.block_size)

    def free(self, seq: Sequence, now: float, num_tokens: int | None = None) -> None:
        """See CacheManager."""
        self._store.store(seq, seq.num_computed if num_tokens is None else num_tokens)
        for block in reversed(seq.blocks[seq.num_detached :]):
            self._release(block, now)
        seq.set_blocks([])
        seq.num_stored_blocks = seq.num_computed = 0

    def pin(self, seq: Sequence) -> list[int]:
        """Keeps the blocks that a live sequence has now, also after its end, and returns their ids.

        For a reader of the KV that is slower than the sequence, such as a transfer to another
        worker. Pinned blocks stay reusable but are not free. Each pin needs an unpin.
        """
        return self._pins.add(seq.blocks[seq.num_detached :])

    def unpin(self, block_ids: Seq[int], now: float) -> None:
        """Takes one pin from each block. Raises ValueError, and takes none, if one has none."""
        for block in self._pins.take(block_ids):
            self._release(block, now)

    def find(self, seq: Sequence) -> list[Block]:
        """The blocks that hold all of a sequence's tokens but the last, parents first.

        Empty when they are not all there. `parent` of each is the one before; of the first it is
        the root. For tests, and for whoever must name the blocks of a prefix.
        """
        return self._tree.find(seq.namespace, seq.key(0, len(seq.tokens) - 1))

    def expire(self, now: float) -> None:
        """See CacheManager."""
        for block, old in self._eviction.expire(now):
            if block.block_hash is not None and old != DEFAULT_RETENTION_PRIORITY:
                self._events.reprioritised(block.block_hash, old, DEFAULT_RETENTION_PRIORITY)

    def reusable_blocks(self) -> list[Block]:
        """Every block in the reuse tree, parents first. For tests and inspection."""
        return list(self._tree.blocks())

    def _match(self, seq: Sequence) -> Match:
        return self._tree.match(seq.namespace, seq.key(0, len(seq.tokens) - 1))

    def _fits(self, seq: Sequence, match: Match, num_spare: int) -> bool:
        num_needed = -(-len(seq.tokens) // self.block_size)
        num_shared = sum(block.ref_count > 0 for block in match.full)
        return num_needed - num_shared + num_spare <= self.num_free_blocks

    def _num_missing(self, seq: Sequence, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size) - len(seq.blocks)

    def _share(self, block: Block, retention: BlockRetention) -> None:
        """One more user of a reusable block."""
        if not block.ref_count:
            self._eviction.claim(block)
        old = block.retention_priority
        block.use(*retention)
        if block.retention_priority != old:
            assert block.block_hash is not None
            self._events.reprioritised(block.block_hash, old, block.retention_priority)

    def _release(self, block: Block, now: float) -> None:
        """One user less."""
        block.ref_count -= 1
        if not block.ref_count:
            self._eviction.release(block, now)
