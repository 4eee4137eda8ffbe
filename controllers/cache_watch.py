"""What a replica's own cache events tell the autoscaling policy: its worth, and its pressure.

Owns which blocks are resident, which were evicted and are still wanted. Events must come in order,
from one thread. Does not know requests, only what retention they asked for.

1. A block's wanted lifetime is the longest duration that requests asked for with its retention
   priority. A block whose promise has expired was lowered by its engine, and is not wanted.
2. A block is asked for again when it is stored anew within that time after its eviction.
3. Both books are bounded; the oldest entries go first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from controllers.cache_sample import CacheSample
from controllers.events import Cleared, Event, Removed, Stored, Updated, WorkerUp
from controllers.promises import DEFAULT_RETENTION_PRIORITY
from controllers.retention import Retention

MAX_EVICTED = 65_536
# What never expires is wanted for this long; to have been wanted for ever would count every block
# of a prompt that nobody has used since yesterday.
MAX_LIFETIME_S = 3600.0


class CacheWatch:
    """`capacity`: blocks of all media together."""

    def __init__(self, capacity: int) -> None:
        self._max_resident = 2 * max(1, capacity)
        self._resident: OrderedDict[str, int] = OrderedDict()  # hash -> retention priority
        self._evicted: OrderedDict[str, float] = OrderedDict()  # hash -> wanted until
        self._lifetimes: dict[int, float] = {}
        self._sample = CacheSample(capacity)
        self._weight = 0  # sum of the resident blocks' retention priorities

    @property
    def content_blocks(self) -> float:
        """Resident blocks, each weighted by its retention priority / 100."""
        return self._weight / 100

    def sample(self) -> tuple[float, ...]:
        return self._sample.words()

    def on_request(self, retention: Retention) -> None:
        """Learn what lifetimes are asked for. Any thread."""
        for part in retention.ranges:
            self._learn(part.retention_priority, part.duration_s)
        self._learn(retention.decode_retention_priority, retention.decode_duration_s)

    def on_events(self, events: Iterable[Event], now: float) -> int:
        """Apply; returns how many tokens were stored that had been evicted while wanted."""
        num_reasked = 0
        for event in events:
            if isinstance(event, Stored):
                num_reasked += self._store(event, now)
            elif isinstance(event, Removed):
                for block_hash in event.hashes:
                    self._remove(block_hash, now)
            elif isinstance(event, Updated):
                self._update(event)
            elif isinstance(event, (Cleared, WorkerUp)):
                self._clear()
        return num_reasked

    def _learn(self, retention_priority: int, duration_s: float | None) -> None:
        lifetime = MAX_LIFETIME_S if duration_s is None else min(duration_s, MAX_LIFETIME_S)
        if retention_priority > DEFAULT_RETENTION_PRIORITY:
            known = self._lifetimes.get(retention_priority, 0.0)
            self._lifetimes[retention_priority] = max(known, lifetime)

    def _store(self, event: Stored, now: float) -> int:
        num_reasked = 0
        for block_hash, num_tokens, priority in zip(
            event.hashes, event.num_tokens, event.retention_priority, strict=True
        ):
            if now <= self._evicted.pop(block_hash, -1.0):
                num_reasked += num_tokens
            self._set(block_hash, priority)
        while len(self._resident) > self._max_resident:
            self._drop(next(iter(self._resident)))
        return num_reasked

    def _set(self, block_hash: str, retention_priority: int) -> None:
        known = self._resident.get(block_hash)
        if known is None:
            self._sample.add(block_hash)
        self._weight += retention_priority - (known or 0)
        self._resident[block_hash] = retention_priority

    def _remove(self, block_hash: str, now: float) -> None:
        lifetime = self._lifetimes.get(self._drop(block_hash), 0.0)
        if lifetime:
            self._evicted[block_hash] = now + lifetime
            if len(self._evicted) > MAX_EVICTED:
                self._evicted.popitem(last=False)

    def _drop(self, block_hash: str) -> int:
        """Its retention priority; -1 for a block that is not here."""
        priority = self._resident.pop(block_hash, None)
        if priority is None:
            return -1
        self._sample.drop(block_hash)
        self._weight -= priority
        return priority

    def _update(self, event: Updated) -> None:
        if event.retention_priority is not None:
            for block_hash in event.hashes:
                if block_hash in self._resident:
                    self._set(block_hash, event.retention_priority)

    def _clear(self) -> None:
        self._resident.clear()
        self._sample.clear()
        self._weight = 0
