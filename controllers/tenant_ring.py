"""Whose turn it is among the tenants of one rank: weighted deficit round robin in uncached tokens.

A tenant whose turn comes gets `quantum_tokens` times its weight of credit and starts requests while
the credit pays for them. What it cannot use yet it keeps until its line is empty. So two tenants
that always have something waiting start tokens in the ratio of their weights, off by at most a
quantum and one request.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from controllers.tenant_line import TenantLine
from controllers.waiting import Waiting


class TenantRing:
    """Only tenants with something waiting are in it; the first one has the turn."""

    def __init__(self, quantum_tokens: int) -> None:
        self._quantum_tokens = quantum_tokens
        self._lines: OrderedDict[str, TenantLine] = OrderedDict()
        self._has_credit = False  # the first one got its credit for this turn
        self.num_waiting = 0
        self.tokens = 0  # uncached

    @property
    def lines(self) -> dict[str, TenantLine]:
        return self._lines

    def add(self, item: Waiting) -> None:
        line = self._lines.setdefault(item.tenant, TenantLine())
        line.add(item)
        self.num_waiting += 1
        self.tokens += item.uncached_tokens

    def remove(self, item: Waiting) -> None:
        """It waits here and leaves without having had its turn."""
        line = self._lines[item.tenant]
        line.remove(item.request_id)
        self.num_waiting -= 1
        self.tokens -= item.uncached_tokens
        if not line:
            self._has_credit = self._has_credit and self._holder() is not line
            del self._lines[item.tenant]

    def take(self, item: Waiting) -> None:
        """It starts, and its tenant pays."""
        self._lines[item.tenant].credit -= item.charge
        self.remove(item)

    def first(self) -> Waiting | None:
        """Whose turn it is. Asking again without a change gives the same."""
        if not self._lines:
            return None
        item = self._affordable()
        if item is None:
            self._skip_rounds()
        while item is None:
            self._lines.move_to_end(next(iter(self._lines)))
            self._has_credit = False
            item = self._affordable()
        return item

    def first_hit(self) -> Waiting | None:
        """Of those without anything to prefill: the first of the tenant with the most credit."""
        hits = [(line, line.first_hit()) for line in self._lines.values()]
        with_hits = [(line.credit / line.weight, hit) for line, hit in hits if hit is not None]
        return max(with_hits, key=lambda found: found[0])[1] if with_hits else None

    def _holder(self) -> TenantLine:
        return next(iter(self._lines.values()))

    def _affordable(self) -> Waiting | None:
        """The first request of the tenant that has the turn, if its credit pays for it."""
        line = self._holder()
        if not self._has_credit:
            self._has_credit = True
            line.credit += self._quantum_tokens * line.weight
        item = line.first()
        assert item is not None, "a tenant without a request left the ring"
        return item if line.credit >= item.charge else None

    def _skip_rounds(self) -> None:
        """Rounds in which nobody could start anything, all at once: a long prompt or a small weight
        may need thousands."""
        rounds = min(self._num_rounds(line) for line in self._lines.values()) - 1
        if rounds > 0:
            for line in self._lines.values():
                line.credit += rounds * self._quantum_tokens * line.weight

    def _num_rounds(self, line: TenantLine) -> int:
        item = line.first()
        assert item is not None, "a tenant without a request left the ring"
        missing = item.charge - line.credit
        return max(0, math.ceil(missing / (self._quantum_tokens * line.weight)))
