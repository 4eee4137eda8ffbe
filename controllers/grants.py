"""What runs of blocks were promised on one worker, and the room that the young promises take.

Owns the reservation: a promise holds room at its retention priority until its blocks are past their
best; what would not fit beside those is not promised. A cache that promises more than it holds
evicts exactly what is about to be used. Knows no tree, class or request.
"""

from __future__ import annotations

import heapq
import math

from controllers.promises import MAX_RETENTION_PRIORITY, Promise

SHARE = 0.85  # of the cache, that may be promised to young blocks


class Grant:
    """A promise for one run. While the request runs nothing ends, so the times are inf."""

    __slots__ = (
        "boost", "duration_s", "guard_ends_s", "guard_s", "num_held", "num_spare",
        "retention_priority", "tenant", "until_s",
    )  # fmt: skip

    def __init__(self, promise: Promise, guard_s: float, tenant: str, boost: float = 1.0) -> None:
        self.retention_priority = promise.retention_priority
        self.duration_s = promise.duration_s
        self.guard_s = min(guard_s, promise.duration_s)
        self.tenant = tenant
        self.boost = boost
        self.num_held = 0
        self.num_spare = 0  # resident blocks at the run's end that were refused; they go first
        self.until_s = math.inf
        self.guard_ends_s = math.inf

    def left(self, now: float) -> Promise | None:
        """What of the promise still holds."""
        if now >= self.until_s:
            return None
        left_s = self.duration_s if math.isinf(self.until_s) else self.until_s - now
        return Promise(self.retention_priority, left_s)

    def take_over(self, other: Grant, num_other: int) -> None:
        """The blocks of the other's run join this one's."""
        moved = min(other.num_held, num_other) if other is not self else 0
        other.num_held -= moved
        self.num_held += moved
        self.until_s = max(self.until_s, other.until_s)


class Room:
    """One worker's cache: blocks held by retention priority."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._held = [0] * (MAX_RETENTION_PRIORITY + 1)
        self._num_held = 0
        self._ends: list[tuple[float, int, Grant]] = []
        self._num_ends = 0

    def left(self, retention_priority: int) -> int:
        """Blocks that may still be promised at this level."""
        return max(0, int(SHARE * self.num_blocks) - sum(self._held[retention_priority:]))

    def fits(self, num_blocks: int) -> bool:
        """At whatever level; the same as asking `left` at the lowest, in a tenth of the time."""
        return self._num_held + num_blocks <= int(SHARE * self.num_blocks)

    def hold(self, grant: Grant, num_blocks: int) -> None:
        self._num_held += num_blocks
        grant.num_held += num_blocks
        self._held[grant.retention_priority] += num_blocks

    def evicted(self, grant: Grant, num_blocks: int) -> None:
        """Blocks of its run are gone, from the end on."""
        spared = min(grant.num_spare, num_blocks)
        grant.num_spare -= spared
        self.free(grant, num_blocks - spared)

    def free(self, grant: Grant, num_blocks: int) -> None:
        """At most what it holds: blocks were evicted or promised anew."""
        freed = min(grant.num_held, num_blocks)
        grant.num_held -= freed
        self._num_held -= freed
        self._held[grant.retention_priority] -= freed

    def start(self, grant: Grant, now: float) -> None:
        """Its blocks were released: the promise's time runs."""
        grant.until_s = now + grant.duration_s
        grant.guard_ends_s = now + grant.guard_s
        self._num_ends += 1
        heapq.heappush(self._ends, (grant.guard_ends_s, self._num_ends, grant))

    def expire(self, now: float) -> None:
        """Free what guards that are over still hold."""
        while self._ends and self._ends[0][0] <= now:
            ended_s, _, grant = heapq.heappop(self._ends)
            if grant.guard_ends_s == ended_s:
                self.free(grant, grant.num_held)
