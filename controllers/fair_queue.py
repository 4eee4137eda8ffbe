"""The one order of what waits, at a worker's gate and in a router, and who gives way in a full one.

1. Between ranks the order is strict: a better rank goes first.
2. Inside a rank tenants take turns by their weights (`tenant_ring`).
3. Inside a tenant the shortest remaining prefill goes first, minus the time waited.
4. When it is full, the newcomer takes the place of the youngest of the worst rank; in its own rank
   only of a tenant that has more waiting for its weight than the newcomer's would have. Without
   the second part shares among tenants would be those of their arrivals, not of their weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from controllers.errors import Overloaded
from controllers.tenant_line import TenantLine
from controllers.tenant_ring import TenantRing
from controllers.waiting import Waiting, order_key


class Bounds(NamedTuple):
    """What may wait. More than `max_tokens` may be those of one request."""

    max_requests: int
    max_tokens: int | None = None  # uncached; None: any


class FairQueue:
    """Waiting requests; no two of one id."""

    def __init__(self, bounds: Bounds, quantum_tokens: int) -> None:
        self.bounds = bounds
        self._quantum_tokens = quantum_tokens
        self._waiting: dict[str, Waiting] = {}
        self._rings: dict[int, TenantRing] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._waiting

    def get(self, request_id: str) -> Waiting | None:
        """None: it does not wait."""
        return self._waiting.get(request_id)

    @property
    def tokens(self) -> int:
        """Tokens that the waiting requests have to prefill."""
        return sum(ring.tokens for ring in list(self._rings.values()))

    def by_rank(self) -> dict[int, tuple[int, int]]:
        """Rank -> requests that wait and their uncached tokens. Any thread."""
        rings = sorted(self._rings.items())
        return {rank: (ring.num_waiting, ring.tokens) for rank, ring in rings if ring.num_waiting}

    def num_up_to(self, rank: int) -> int:
        """Requests of this rank and better ones."""
        return sum(ring.num_waiting for r, ring in self._rings.items() if r <= rank)

    def submit(self, item: Waiting) -> list[Waiting]:
        """Returns those that gave way; they wait no longer.

        Raises Overloaded, with nothing changed, if it is full and nobody gives way; ValueError for
        an id that waits already.
        """
        if item.request_id in self._waiting:
            raise ValueError(f"request {item.request_id!r} waits already")
        displaced = self._room_for(item)
        for victim in displaced:
            self.cancel(victim.request_id)
        self._waiting[item.request_id] = item
        if item.rank not in self._rings:
            self._rings[item.rank] = TenantRing(self._quantum_tokens)
        self._rings[item.rank].add(item)
        return displaced

    def tokens_before(self, item: Waiting) -> int:
        """Tokens to prefill of what goes before it, as if its rank were one tenant's."""
        place = _place(item)
        return sum(
            other.uncached_tokens for other in self._waiting.values() if _place(other) < place
        )

    def first(self) -> Waiting | None:
        """Who is next. Asking again without a change gives the same."""
        ring = min(self._busy(), default=None)
        return None if ring is None else self._rings[ring].first()

    def first_hit(self) -> Waiting | None:
        """The next of those without anything to prefill."""
        hits = (self._rings[rank].first_hit() for rank in sorted(self._busy()))
        return next((hit for hit in hits if hit is not None), None)

    def take(self, item: Waiting) -> None:
        """It starts: it waits no longer, and its tenant's share pays for it."""
        del self._waiting[item.request_id]
        self._rings[item.rank].take(item)

    def cancel(self, request_id: str) -> bool:
        """It waits no longer. False if it did not wait."""
        item = self._waiting.pop(request_id, None)
        if item is None:
            return False
        self._rings[item.rank].remove(item)
        return True

    def _busy(self) -> list[int]:
        return [rank for rank, ring in self._rings.items() if ring.num_waiting]

    def _room_for(self, item: Waiting) -> list[Waiting]:
        victims: list[Waiting] = []
        order = self._who_gives_way(item)
        while not self._fits(item, victims):
            is_short_of_tokens = len(self) - len(victims) < self.bounds.max_requests
            victim = next((v for v in order if v.uncached_tokens or not is_short_of_tokens), None)
            if victim is None:
                raise Overloaded(
                    f"{len(self)} requests with {self.tokens} tokens to prefill wait; its bound is "
                    f"{self.bounds.max_requests} requests and {self.bounds.max_tokens or 'any'} "
                    f"tokens, and none of them gives way to rank {item.rank}"
                )
            victims.append(victim)
        return victims

    def _fits(self, item: Waiting, without: list[Waiting]) -> bool:
        if len(self) - len(without) >= self.bounds.max_requests:
            return False
        if self.bounds.max_tokens is None or item.uncached_tokens == 0:
            return True
        tokens = self.tokens - sum(victim.uncached_tokens for victim in without)
        return tokens == 0 or tokens + item.uncached_tokens <= self.bounds.max_tokens

    def _who_gives_way(self, item: Waiting) -> Iterator[Waiting]:
        for rank in sorted(self._busy(), reverse=True):
            if rank > item.rank:
                yield from _fattest_first(self._rings[rank].lines)
            elif rank == item.rank:
                yield from _over_its_share(self._rings[rank].lines, item)


def _place(item: Waiting) -> tuple[int, float]:
    return item.rank, order_key(item.uncached_tokens, item.submitted_s)


class _Share:
    """A tenant's line while some of it is thought away."""

    def __init__(self, line: TenantLine) -> None:
        self.charge = float(line.charge)
        self.weight = line.weight
        self._rest = line.youngest_first()
        self.youngest = next(self._rest, None)

    @property
    def size(self) -> float:
        """What waits, for its weight."""
        return self.charge / self.weight

    def without_youngest(self) -> float:
        assert self.youngest is not None
        return (self.charge - self.youngest.charge) / self.weight

    def drop(self) -> Waiting:
        dropped = self.youngest
        assert dropped is not None
        self.charge -= dropped.charge
        self.youngest = next(self._rest, None)
        return dropped


def _fattest_first(lines: dict[str, TenantLine]) -> Iterator[Waiting]:
    """The youngest of whoever has most waiting for its weight, again and again."""
    shares = [_Share(line) for line in lines.values()]
    while shares := [share for share in shares if share.youngest is not None]:
        yield max(shares, key=lambda share: share.size).drop()


def _over_its_share(lines: dict[str, TenantLine], item: Waiting) -> Iterator[Waiting]:
    """Of tenants that would still have no less waiting for their weight than the newcomer's."""
    own = lines.get(item.tenant)
    size = ((own.charge if own is not None else 0) + item.charge) / item.weight
    shares = [_Share(line) for tenant, line in lines.items() if tenant != item.tenant]
    while shares := [share for share in shares if share.youngest is not None]:
        fattest = max(shares, key=lambda share: share.size)
        if fattest.without_youngest() < size:
            return
        yield fattest.drop()
