"""What waits in a router because no worker should start it yet, and in which order it is looked at.

Owns who waits. Knows neither workers nor costs: it is told how soon each could have its first
token. `now` is in seconds.

1. A better rank comes first.
2. Inside a rank tenants take turns by what of theirs was sent, for their weights.
3. Inside a tenant the soonest first token comes first, minus the time waited; but see `bursts`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from controllers.placement_types import Query

NUM_SCANNED = 48  # oldest ones that a pass looks at
AGING = 1.0  # ms of first-token time that one ms of waiting is worth
# What a request counts at least when shares are kept, as at the gates.
MIN_CHARGE_TOKENS = 64.0


@dataclass
class Waiter:
    """One request that waits since `since_s`."""

    query: Query
    since_s: float

    def waited_ms(self, now: float) -> float:
        return (now - self.since_s) * 1000.0


class RouterQueue:
    """Requests by id, oldest first."""

    def __init__(self) -> None:
        self._waiters: dict[str, Waiter] = {}
        self._shares = _Shares()

    def __len__(self) -> int:
        return len(self._waiters)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._waiters

    def add(self, query: Query, since_s: float) -> None:
        """`since_s`: when it came, which may be earlier than now. An id that waits is replaced."""
        waiting = {waiter.query.tenant for waiter in self._waiters.values()}
        if query.tenant not in waiting:  # else it has a turn already
            self._shares.join(query.tenant, waiting)
        self._waiters[query.request_id] = Waiter(query, since_s)

    def remove(self, request_id: str) -> None:
        """Unknown ids change nothing."""
        self._waiters.pop(request_id, None)

    def sent(self, query: Query, uncached_tokens: float) -> None:
        """It waits no longer, and its tenant's share pays for it, once."""
        self.remove(query.request_id)
        if not query.is_again:
            self._shares.pay(query, uncached_tokens)

    def scanned(self) -> list[Waiter]:
        """Those that a pass looks at: of a better rank all before any of a worse one."""
        waiters = self._waiters.values()
        if len(waiters) <= NUM_SCANNED:
            return list(waiters)
        by_rank = sorted(waiters, key=lambda waiter: waiter.query.rank)
        return list(islice(by_rank, NUM_SCANNED))

    def soonest_first(
        self, waiters: Sequence[Waiter], ttft_ms: Sequence[float], now: float
    ) -> list[int]:
        """Indices of `waiters`. `ttft_ms`: how soon each could start to answer, at best."""
        urgency = [
            ttft - AGING * waiter.waited_ms(now)
            for waiter, ttft in zip(waiters, ttft_ms, strict=True)
        ]
        return sorted(range(len(waiters)), key=urgency.__getitem__)

    def in_turns(
        self, waiters: Sequence[Waiter], order: Sequence[int], uncached_tokens: Sequence[float]
    ) -> list[int]:
        """`order` as far as ranks and the turns of tenants leave it. `uncached_tokens`: what each
        of `waiters` would have computed, at best."""
        if len({waiter.query.tenant for waiter in waiters}) == 1:
            return sorted(order, key=lambda i: waiters[i].query.rank)
        turns = self._shares.turns([(waiters[i].query, uncached_tokens[i]) for i in order])
        turn_of = dict(zip(order, turns, strict=True))
        return sorted(order, key=lambda i: (waiters[i].query.rank, turn_of[i]))


class _Shares:
    """Start-time fair queueing: what each tenant was sent, for its weight. A tenant that comes
    starts level with those that wait: nobody saves up by staying away."""

    def __init__(self) -> None:
        self._paid: dict[str, float] = {}

    def join(self, tenant: str, waiting: set[str]) -> None:
        others = [self._paid[name] for name in waiting if name in self._paid and name != tenant]
        if not others:
            self._paid = {tenant: self._paid.get(tenant, 0.0)}
            return
        self._paid[tenant] = max(self._paid.get(tenant, 0.0), min(others))

    def pay(self, query: Query, tokens: float) -> None:
        self._paid[query.tenant] = self._paid.get(query.tenant, 0.0) + _charge(query, tokens)

    def turns(self, sent: Sequence[tuple[Query, float]]) -> list[float]:
        """When each one's turn is, if all of a tenant's follow in this order."""
        paid: defaultdict[str, float] = defaultdict(float, self._paid)
        turns = []
        for query, tokens in sent:
            turns.append(paid[query.tenant])
            paid[query.tenant] += _charge(query, tokens)
        return turns


def _charge(query: Query, tokens: float) -> float:
    return max(MIN_CHARGE_TOKENS, tokens) / query.weight
