"""Blocks of all mediums: getting a free one, moving content between mediums, dropping it.

Owns every block, the reuse tree, the eviction policy and the events of moves and removals. Does
not know sequences.

1. Only blocks on the gpu medium are ever in use; a host block is onboarded before.
2. When a reusable gpu block must go it is offloaded if its retention priority is at least
   `min_offload_priority` and the host block that would go for it is not kept by a higher one.
   Else its content is dropped, and with it everything that follows it in the tree.
"""

from __future__ import annotations

from typing import Protocol

from serve_app.engine.block import GPU, HOST, MEDIUM_OF_LEVEL, Block
from serve_app.engine.event_sink import EventSink
from serve_app.engine.eviction import EvictionPolicy
from serve_app.engine.reuse_tree import ReuseTree


class Storage(Protocol):
    """Copies KV. Arguments are slots; every call is done when it returns."""

    def copy_tokens(self, source: int, target: int, num_tokens: int) -> None: ...

    def offload(self, block: int, host_block: int) -> None: ...

    def onboard(self, host_block: int, block: int) -> None: ...


class Tiers:
    """All blocks; ids 0 ... num_gpu_blocks - 1 start on the gpu medium, the rest on the host."""

    def __init__(
        self,
        *,
        block_size: int,
        num_gpu_blocks: int,
        num_host_blocks: int,
        storage: Storage,
        events: EventSink,
        min_offload_priority: int,
    ) -> None:
        self.tree = ReuseTree(block_size)
        self.events = events
        self.eviction = EvictionPolicy(len(MEDIUM_OF_LEVEL))
        self._storage = storage
        self._min_offload_priority = min_offload_priority
        gpu = [Block(i, GPU, i) for i in range(num_gpu_blocks)]
        host = [Block(num_gpu_blocks + i, HOST, i) for i in range(num_host_blocks)]
        for block in gpu + host:
            self.eviction.release(block, now=0.0)

    def take_free(self) -> Block:
        """A claimed gpu block without content. There must be a free one."""
        block = self.eviction.front(GPU)
        if block.is_reusable:
            emptied = self._offload(block)
            if emptied is not None:
                return emptied
            self.drop(block)
        self.eviction.claim(block)
        return block

    def drop(self, block: Block) -> None:
        """Makes a block and all that follows it unreusable; those in use stay with their owners."""
        for node, block_hash in self.tree.detach(block):
            self.events.removed(block_hash)
            if node.queue is not None:
                node.expires_at = None
                self.eviction.requeue(node)

    def onboard(self, block: Block, now: float) -> None:
        """Moves a claimed host block to the gpu medium; its old place becomes a free host block."""
        taken = self.take_free()
        self._storage.onboard(block.slot, taken.slot)
        block.slot, taken.slot = taken.slot, block.slot
        block.level, taken.level = GPU, HOST
        self.eviction.release(taken, now)
        if block.block_hash is not None:
            self.events.moved(block.block_hash, "host", "gpu")

    def copy(self, source: Block, target: Block, num_tokens: int) -> None:
        """Copies leading tokens of a block of any medium to a gpu block."""
        if source.level == HOST:
            self._storage.onboard(source.slot, target.slot)
        else:
            self._storage.copy_tokens(source.slot, target.slot, num_tokens)

    def _offload(self, block: Block) -> Block | None:
        """Moves a free block's content to the host; the gpu block, claimed, in return."""
        if block.retention_priority < self._min_offload_priority:
            return None
        if not self.eviction.num_free(HOST):
            return None
        host = self.eviction.front(HOST)
        if host.is_reusable and not _may_displace(host, block):
            return None
        assert block.block_hash is not None
        self._storage.offload(block.slot, host.slot)
        self.events.moved(block.block_hash, "gpu", "host")
        if host.is_reusable:
            self.drop(host)
        block.slot, host.slot = host.slot, block.slot
        self.eviction.swap_level(block, HOST)
        self.eviction.swap_level(host, GPU)
        self.eviction.claim(host)
        return host


def _may_displace(host: Block, block: Block) -> bool:
    """Whether `host` may be dropped to keep `block`: not when `block` would be dropped with it."""
    if host.retention_priority > block.retention_priority:
        return False
    if not host.children:
        return True
    ancestor = block.parent
    while ancestor is not None and ancestor is not host:
        ancestor = ancestor.parent
    return ancestor is None


class NoStorage:
    """For a model that keeps no KV."""

    def copy_tokens(self, source: int, target: int, num_tokens: int) -> None:
        pass

    def offload(self, block: int, host_block: int) -> None:
        pass

    def onboard(self, host_block: int, block: int) -> None:
        pass
