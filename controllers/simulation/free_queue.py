"""Which cached content of one medium goes next: the lowest retention priority, then the oldest.

The order is TensorRT-LLM's, as in the local engine. Knows no sizes, trees or time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from controllers.simulation.node import Node

NUM_PRIORITIES = 101


class FreeQueue:
    """Nodes that nobody uses. Every call is O(1), but `in_order`."""

    def __init__(self) -> None:
        self._queues: list[OrderedDict[Node, None]] = [OrderedDict() for _ in range(NUM_PRIORITIES)]
        self._occupied = 0  # bit p: priority p has a node
        self.num_blocks = 0

    def put(self, node: Node) -> None:
        """To the tail of its retention priority's queue."""
        priority = node.retention_priority
        queue = self._queues[priority]
        if not queue:
            self._occupied |= 1 << priority
        queue[node] = None
        node.queued_at = priority
        self.num_blocks += node.num_blocks

    def take(self, node: Node) -> None:
        """It must be here."""
        priority = node.queued_at
        queue = self._queues[priority]
        del queue[node]
        if not queue:
            self._occupied &= ~(1 << priority)
        node.queued_at = -1
        self.num_blocks -= node.num_blocks

    def front(self) -> Node | None:
        """The next to go, still here."""
        occupied = self._occupied
        if not occupied:
            return None
        return next(iter(self._queues[(occupied & -occupied).bit_length() - 1]))

    def in_order(self) -> Iterator[Node]:
        for queue in self._queues:
            yield from queue
