"""What a simulated cache holds in all, and what goes when room is needed.

Owns the nodes, the free queues of both media, timers and the events of every change. Who uses a
node is `cache`'s business. `now` is in seconds.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from controllers.events import Event, Removed, Updated, hex_of
from controllers.simulation.free_queue import FreeQueue
from controllers.simulation.node import DEFAULT_PRIORITY, GPU, HOST, MEDIUMS, Node


class CacheShape(NamedTuple):
    """In blocks. `tokens_of_node`: block size of the events."""

    num_gpu_blocks: int
    num_host_blocks: int = 0
    min_offload_priority: int = 30
    tokens_of_node: int = 512


class CacheStore:
    """`nodes`: those that prompts can find, by key, parents before children. `num_used_blocks`: on
    the gpu for live requests; more than there are if a request runs alone that needs more."""

    def __init__(self, shape: CacheShape) -> None:
        self.shape = shape
        self.nodes: dict[int, Node] = {}
        self.num_used_blocks = 0
        self.events: list[Event] = []
        self._num_claimed_blocks = 0  # in use, but still on the host
        self._free = (FreeQueue(), FreeQueue())
        self._timers: list[tuple[float, int, Node]] = []
        self._num_timers = 0

    @property
    def num_cached_blocks(self) -> dict[str, int]:
        """In use or reusable, by medium."""
        gpu, host = self._free
        return {"gpu": self.num_used_blocks + gpu.num_blocks, "host": host.num_blocks}

    def claim(self, node: Node) -> None:
        """A free node comes into use; its timer is cancelled."""
        self._free[node.level].take(node)
        node.expires_s = None
        if node.level == GPU:
            self.num_used_blocks += node.num_blocks
        else:
            self._num_claimed_blocks += node.num_blocks

    def release(self, node: Node, now: float) -> None:
        """Nobody uses it any more; its timer starts."""
        self.num_used_blocks -= node.num_blocks
        self._free[GPU].put(node)
        if node.duration_s is not None and node.retention_priority != DEFAULT_PRIORITY:
            node.expires_s = now + node.duration_s
            self._num_timers += 1
            heapq.heappush(self._timers, (node.expires_s, self._num_timers, node))

    def expire(self, now: float) -> None:
        """End the timers that are over."""
        timers = self._timers
        while timers and timers[0][0] <= now:
            at, _, node = heapq.heappop(timers)
            if node.expires_s == at:
                node.expires_s = None
                self._free[node.level].take(node)
                self.reprioritise(node, DEFAULT_PRIORITY)
                self._free[node.level].put(node)

    def onboard(self, node: Node) -> None:
        """A claimed node comes back to the gpu."""
        self.make_room(node.num_blocks)
        node.level = GPU
        self._num_claimed_blocks -= node.num_blocks
        self.num_used_blocks += node.num_blocks
        self._tell_move(node, HOST, GPU)

    def reprioritise(self, node: Node, priority: int) -> None:
        """Tells of it too; a free node must be put back by the caller."""
        if node.key is not None and priority != node.retention_priority:
            self.events.append(
                Updated(
                    hashes=[hex_of(node.key)],
                    retention_priority=priority,
                    old_retention_priority=node.retention_priority,
                )
            )
        node.retention_priority = priority

    def make_room(self, num_blocks: int = 0) -> None:
        """Evict until what is used, and so many more, fit; or nothing is left to evict."""
        gpu = self._free[GPU]
        limit = self.shape.num_gpu_blocks - num_blocks
        while self.num_used_blocks + gpu.num_blocks > limit:
            node = gpu.front()
            if node is None:
                return
            if not self._offload(node):
                self._drop(node)

    def _offload(self, node: Node) -> bool:
        """Move it to the host, if that is allowed and makes sense."""
        if node.retention_priority < self.shape.min_offload_priority:
            return False
        victims = self._victims(node)
        if victims is None:
            return False
        self._tell_move(node, GPU, HOST)
        for victim in victims:
            if victim.queued_at >= 0:  # else dropped with one before it
                self._drop(victim)
        self._free[GPU].take(node)
        node.level = HOST
        self._free[HOST].put(node)
        return True

    def _victims(self, node: Node) -> list[Node] | None:
        """What must leave the host for it; None: it may not displace that."""
        host, num_host_blocks = self._free[HOST], self.shape.num_host_blocks
        if num_host_blocks < node.num_blocks:
            return None
        taken = host.num_blocks + self._num_claimed_blocks
        missing = taken + node.num_blocks - num_host_blocks
        victims: list[Node] = []
        for victim in host.in_order() if missing > 0 else ():
            if victim.retention_priority > node.retention_priority or node.is_behind(victim):
                return None
            victims.append(victim)
            missing -= victim.num_blocks
            if missing <= 0:
                break
        return victims if missing <= 0 else None

    def _drop(self, node: Node) -> None:
        """Forget it and all that is behind it, children before parents."""
        if not node.children:
            self._forget(node)
            return
        todo, ordered = [node], []
        while todo:
            top = todo.pop()
            ordered.append(top)
            todo.extend(top.children or ())
        for each in reversed(ordered):
            self._forget(each)

    def _forget(self, node: Node) -> None:
        self._free[node.level].take(node)
        node.expires_s = None
        node.leave_parent()
        if node.key is None:
            return
        del self.nodes[node.key]
        events = self.events
        if events and isinstance(events[-1], Removed):
            events[-1].hashes.append(hex_of(node.key))
        else:
            events.append(Removed(hashes=[hex_of(node.key)]))

    def _tell_move(self, node: Node, old: int, new: int) -> None:
        if node.key is not None:
            self.events.append(
                Updated(hashes=[hex_of(node.key)], medium=MEDIUMS[new], old_medium=MEDIUMS[old])
            )
