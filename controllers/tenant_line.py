"""What one tenant has waiting in one rank: the shortest remaining prefill first, with aging.

Also keeps the tenant's credit for `tenant_ring`. Knows no other tenant.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from controllers.waiting import Waiting, order_key


class _Entry(NamedTuple):
    key: float
    number: int  # order of arrival, among equals
    item: Waiting


class TenantLine:
    """`credit`: tokens that the tenant may start now; `charge`: tokens that wait."""

    def __init__(self) -> None:
        self.weight = 1.0  # as its last request said
        self.credit = 0.0
        self.charge = 0
        self._waiting: dict[str, _Entry] = {}  # oldest first
        self._hits: list[_Entry] = []
        self._prefills: list[_Entry] = []
        self._num_added = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, item: Waiting) -> None:
        """An id that does not wait here yet."""
        self._num_added += 1
        key = order_key(item.uncached_tokens, item.submitted_s)
        entry = _Entry(key, self._num_added, item)
        self._waiting[item.request_id] = entry
        self.weight = item.weight
        self.charge += item.charge
        heapq.heappush(self._prefills if item.uncached_tokens else self._hits, entry)

    def remove(self, request_id: str) -> Waiting:
        """One that waits here."""
        item = self._waiting.pop(request_id).item
        self.charge -= item.charge
        if len(self._hits) + len(self._prefills) > 2 * len(self._waiting) + 64:
            self._hits = self._live(self._hits)
            self._prefills = self._live(self._prefills)
        return item

    def first(self) -> Waiting | None:
        heads = [self._head(self._hits), self._head(self._prefills)]
        first = min((entry for entry in heads if entry is not None), default=None)
        return None if first is None else first.item

    def first_hit(self) -> Waiting | None:
        """The first of those without anything to prefill."""
        head = self._head(self._hits)
        return None if head is None else head.item

    def youngest_first(self) -> Iterator[Waiting]:
        """In order of arrival, last one first. Ends with the next change."""
        return (entry.item for entry in reversed(self._waiting.values()))

    def _head(self, heap: list[_Entry]) -> _Entry | None:
        """Drops what was removed before."""
        while heap and not self._is_live(heap[0]):
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _is_live(self, entry: _Entry) -> bool:
        return self._waiting.get(entry.item.request_id) is entry

    def _live(self, heap: list[_Entry]) -> list[_Entry]:
        live = [entry for entry in heap if self._is_live(entry)]
        heapq.heapify(live)
        return live
