"""What several routers know of each other, by their own logs and feeds, on a bus in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from controllers.errors import Overloaded
from controllers.placement import Query
from controllers.routing_table import RoutingTable
from infra.event_bus_memory import MemoryBus
from infra.settings import to_settings
from serve_app.placer import Placer
from tests.routing_rig import BLOCK_SIZE

NUM_TOKENS = 400
WORKERS = {"a-0": 1000, "b-0": 1000}


class Router:
    """`num_ingress` routers are settings; it starts to tell and to hear by `configure`."""

    def __init__(self, bus: MemoryBus, name: str) -> None:
        self.now = 10.0
        self.excluded: set[str] = set()
        self.placer = Placer(
            settings(1),
            RoutingTable(BLOCK_SIZE),
            bus,
            router=name,
            seed=1,
            clock=lambda: self.now,
            exclude_of=lambda query: self.excluded,
        )
        self.placer.set_workers(WORKERS)

    def num_requests(self) -> dict[str, float]:
        found = self.placer.explain(query("how many"), self.now)["candidates"]
        return {candidate["worker"]: candidate["num_requests"] for candidate in found}


def settings(num_ingress: int) -> Any:
    return to_settings(
        {
            "executor": {"block_size": BLOCK_SIZE},
            "http": {"num_ingress": num_ingress, "bookings_linger_s": 0.0},
        }
    )


def query(request_id: str, **fields: Any) -> Query:
    return Query(request_id=request_id, hashes=[], num_tokens=NUM_TOKENS, **fields)


@asynccontextmanager
async def two_routers() -> AsyncIterator[tuple[Router, Router]]:
    bus = MemoryBus()
    routers = Router(bus, "one"), Router(bus, "other")
    for router in routers:
        router.placer.configure(settings(2))
    yield routers
    for router in routers:
        router.placer.close()


async def knows(router: Router, num_requests: dict[str, float]) -> None:
    """A test's time limit bounds this."""
    while router.num_requests() != num_requests:
        await asyncio.sleep(0.001)


async def test_routers_know_what_each_has_sent() -> None:
    async with two_routers() as (one, other):
        await one.placer.send(query("q", pinned="a-0"), 10.0)
        await knows(other, {"a-0": 1, "b-0": 0})
        one.placer.first_token("q", "a-0")
        one.placer.release("q", 5)
        await knows(other, {"a-0": 0, "b-0": 0})


async def test_a_piece_is_told_as_what_it_is() -> None:
    async with two_routers() as (one, other):
        long = Query(request_id="q", hashes=list(range(2500)), num_tokens=10_000, pinned="a-0")
        sent = await one.placer.send(long, 10.0)
        assert sent.num_tokens == 1984
        await knows(other, {"a-0": 1, "b-0": 0})
        [booked] = [row for row, worker in enumerate(other.placer._placement._books.workers)
                    if worker == "a-0"]  # fmt: skip
        assert other.placer._placement._books.shared_tokens[booked] == 1984
        one.placer.release("q")
        await knows(other, {"a-0": 0, "b-0": 0})


async def test_one_that_is_alone_forgets_the_others() -> None:
    async with two_routers() as (one, other):
        await one.placer.send(query("q", pinned="a-0"), 10.0)
        await knows(other, {"a-0": 1, "b-0": 0})
        assert other.placer.bookings() is not None
        other.placer.configure(settings(1))
        assert (other.num_requests(), other.placer.bookings()) == ({"a-0": 0, "b-0": 0}, None)
        await other.placer.send(query("own", pinned="b-0"), 10.0)
        assert (other.placer.num_reserved, other.num_requests()) == (1, {"a-0": 0, "b-0": 1})
        other.placer.check_health()


async def test_why_it_may_go_nowhere_is_raised_and_nothing_stays() -> None:
    bus = MemoryBus()
    router = Router(bus, "one")

    def full(query: Query) -> set[str]:
        raise Overloaded("every gate is full")

    router.placer._exclude_of = full
    with pytest.raises(Overloaded, match="every gate is full"):
        await router.placer.send(query("q"), 10.0)
    assert (router.placer.num_held, router.placer.num_reserved) == (0, 0)
    router.placer.close()


async def test_suspected_workers_are_taken_last() -> None:
    router = Router(MemoryBus(), "one")
    sent = await router.placer.send(query("q"), 10.0)
    router.placer.failed("q", sent.placed.worker)
    [other] = WORKERS.keys() - {sent.placed.worker}
    for name in "rst":
        again = await router.placer.send(query(name), 10.0)
        assert again.placed.worker == other
        router.placer.release(name)
    router.excluded = {other}
    last = await router.placer.send(query("u"), 10.0)
    assert last.placed.worker == sent.placed.worker
    router.placer.close()
