"""Which free block goes next: the lowest retention priority, then the oldest release.

Owns the free queues of every medium and the timers of blocks that fall back to the default
priority. Knows neither tokens nor storage; `now` is an argument (seconds, any monotonic origin).

1. Only blocks that nobody uses are in a queue.
2. A block that holds nothing reusable goes before every other, whatever its priority.
3. A timer starts at the release, and only for a priority other than the default. When it ends the
   block moves to the tail of the default priority's queue. Taking the block into use cancels it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict

from serve_app.engine.block import DEFAULT_RETENTION_PRIORITY, Block

NUM_QUEUES = 102  # queue 0: nothing reusable; queue p + 1: retention priority p
SPARE_TIMERS = 64


class FreeQueue:
    """The free blocks of one medium. Every call is O(1)."""

    def __init__(self) -> None:
        self._queues: list[OrderedDict[int, Block]] = [OrderedDict() for _ in range(NUM_QUEUES)]
        self._occupied = 0  # bit q: queue q has a block
        self.num_free = 0

    @property
    def num_empty(self) -> int:
        """Free blocks that hold nothing reusable."""
        return len(self._queues[0])

    def front(self) -> Block:
        """The next block to go, still in its queue. There must be one."""
        lowest = (self._occupied & -self._occupied).bit_length() - 1
        return next(iter(self._queues[lowest].values()))

    def put(self, block: Block, to_front: bool = False) -> None:
        at = block.retention_priority + 1 if block.is_reusable else 0
        block.queue = at
        queue = self._queues[at]
        queue[block.block_id] = block
        if to_front:
            queue.move_to_end(block.block_id, last=False)
        self._occupied |= 1 << at
        self.num_free += 1

    def take(self, block: Block) -> None:
        at = block.queue
        assert at is not None, f"{block} is in use"
        queue = self._queues[at]
        del queue[block.block_id]
        if not queue:
            self._occupied &= ~(1 << at)
        block.queue = None
        self.num_free -= 1


class EvictionPolicy:
    """Free queues of all mediums, and timers."""

    def __init__(self, num_levels: int) -> None:
        self._levels = [FreeQueue() for _ in range(num_levels)]
        self._timers: list[tuple[float, int, Block]] = []
        self._num_timers_set = 0  # ties in the heap go by age
        self._most_timers = SPARE_TIMERS  # with more of them those that were cancelled are dropped

    def num_free(self, level: int) -> int:
        return self._levels[level].num_free

    def num_empty(self, level: int) -> int:
        return self._levels[level].num_empty

    def front(self, level: int) -> Block:
        return self._levels[level].front()

    def claim(self, block: Block) -> None:
        """A free block comes into use; its timer, if any, is cancelled."""
        self._levels[block.level].take(block)
        block.expires_at = None

    def release(self, block: Block, now: float, to_front: bool = False) -> None:
        """A block is free again."""
        self._levels[block.level].put(block, to_front)
        has_timer = block.duration_s is not None and block.is_reusable
        if has_timer and block.retention_priority != DEFAULT_RETENTION_PRIORITY:
            assert block.duration_s is not None
            self._set_timer(block, now + block.duration_s)

    def requeue(self, block: Block) -> None:
        """A free block's priority or content changed: to the tail of its right queue."""
        self._levels[block.level].take(block)
        self._levels[block.level].put(block)

    def swap_level(self, block: Block, level: int) -> None:
        """A free block moved to another medium. Its timer goes on."""
        self._levels[block.level].take(block)
        block.level = level
        self._levels[level].put(block)

    def expire(self, now: float) -> list[tuple[Block, int]]:
        """Moves blocks whose time is over to the default priority: (block, former priority)."""
        expired = []
        while self._timers and self._timers[0][0] <= now:
            at, _, block = heapq.heappop(self._timers)
            if block.expires_at != at:
                continue
            block.expires_at = None
            if block.is_reusable:
                expired.append((block, block.retention_priority))
            block.retention_priority = DEFAULT_RETENTION_PRIORITY
            self.requeue(block)
        return expired

    def _set_timer(self, block: Block, at: float) -> None:
        block.expires_at = at
        self._num_timers_set += 1
        heapq.heappush(self._timers, (at, self._num_timers_set, block))
        if len(self._timers) > self._most_timers:
            self._timers = [t for t in self._timers if t[2].expires_at == t[0]]
            heapq.heapify(self._timers)
            self._most_timers = 2 * len(self._timers) + SPARE_TIMERS
