"""Requests that wait in the router until their worker can start them, without Ray."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from controllers.errors import NotReady, Overloaded
from serve_app.executors.base import TokenChunk
from serve_app.fleet import Ask, Route
from tests.routing_rig import Rig, ask, metadata

SETTLING_TURNS = 5


def prompt(number: int, num_tokens: int = 400) -> list[int]:
    """Longer than what may share a start; no two begin alike."""
    return [1000 * number + at % 997 for at in range(num_tokens)]


class Router:
    """A rig on one worker, and what its requests came to."""

    def __init__(self, *replicas: str, **sections: dict[str, Any]) -> None:
        self.rig = Rig(*replicas, **sections)
        self.rig.up(*(f"{replica}-0" for replica in replicas))
        self.routing = self.rig.routing

    async def begin(self, given: Ask) -> asyncio.Task[str]:
        self.routing.begin(given, Route())
        return await self.place(given.request.request_id)

    async def place(self, request_id: str) -> asyncio.Task[str]:
        task = asyncio.create_task(self.routing.attempts.place(request_id))
        await self.settle()
        return task

    async def settle(self) -> None:
        """Passes that are due are made; timers are far away."""
        self.routing._placement._passes._rests_until = 0.0
        for _ in range(SETTLING_TURNS):
            await asyncio.sleep(0)

    async def first_token(self, request_id: str) -> None:
        self.routing._in_flight[request_id].on_chunk(TokenChunk(token_ids=(1,), cached_tokens=0))
        self.routing.attempts.first_token(request_id)
        await self.settle()

    def finish(self, request_id: str, status: str = "ok") -> None:
        self.routing.finish(self.routing._in_flight[request_id], status)

    def left(self) -> dict[str, int]:
        described = self.routing.describe()["routing"]
        return {name: described[name] for name in ("in_flight", "waiting", "held", "reserved")}


IDLE = {"in_flight": 0, "waiting": 0, "held": 0, "reserved": 0}


async def test_a_request_waits_until_the_one_before_has_its_first_token() -> None:
    router = Router("a")
    first = await router.begin(ask("one", prompt(1)))
    second = await router.begin(ask("two", prompt(2)))
    assert (first.done(), second.done()) == (True, False)
    assert router.left() == {"in_flight": 2, "waiting": 2, "held": 1, "reserved": 1}
    await router.first_token("one")
    assert second.result() == "a"
    assert router.left() == {"in_flight": 2, "waiting": 1, "held": 0, "reserved": 2}
    router.finish("one")
    router.finish("two")
    assert router.left() == IDLE


async def test_without_holding_it_goes_at_once() -> None:
    router = Router("a", routing={"hold": False})
    await router.begin(ask("one", prompt(1)))
    second = await router.begin(ask("two", prompt(2)))
    assert second.result() == "a"


async def test_holding_can_be_turned_off_while_requests_wait() -> None:
    router = Router("a")
    await router.begin(ask("one", prompt(1)))
    second = await router.begin(ask("two", prompt(2)))
    routing = msgspec.structs.replace(router.routing._settings.routing, hold=False)
    router.routing.configure(msgspec.structs.replace(router.routing._settings, routing=routing))
    await router.settle()
    assert second.result() == "a"


@pytest.mark.parametrize("status", ["cancelled", "error"])
async def test_who_leaves_while_it_waits_leaves_nothing(status: str) -> None:
    router = Router("a")
    await router.begin(ask("one", prompt(1)))
    second = await router.begin(ask("two", prompt(2)))
    router.finish("two", status)
    assert router.left() == {"in_flight": 1, "waiting": 1, "held": 0, "reserved": 1}
    await asyncio.wait([second])
    assert second.cancelled()
    router.finish("one")
    assert router.left() == IDLE


async def test_a_waiting_task_that_is_cancelled_waits_no_longer() -> None:
    router = Router("a")
    await router.begin(ask("one", prompt(1)))
    second = await router.begin(ask("two", prompt(2)))
    second.cancel()
    await asyncio.wait([second])
    assert router.left() == {"in_flight": 2, "waiting": 2, "held": 0, "reserved": 1}


async def test_one_that_is_sent_while_it_is_cancelled_keeps_no_worker() -> None:
    router = Router("a")
    await router.begin(ask("one", prompt(1)))
    second = await router.begin(ask("two", prompt(2)))
    router.routing.attempts.first_token("one")
    second.cancel()  # in the turn in which the pass sends it
    await router.settle()
    await asyncio.wait([second])
    router.finish("two", "cancelled")
    router.finish("one")
    assert router.left() == IDLE


async def test_who_gives_way_while_it_waits_is_sent_nowhere() -> None:
    router = Router("a", admission={"max_waiting_requests": 2})
    await router.begin(ask("one", prompt(1)))
    batch = await router.begin(ranked("batch", 2))
    router.routing.begin(ranked("chat", 0), Route())
    assert router.left() == {"in_flight": 3, "waiting": 2, "held": 0, "reserved": 1}
    assert isinstance(router.routing._in_flight["batch"].refusal, Overloaded)
    await asyncio.wait([batch])
    assert batch.cancelled()


def ranked(request_id: str, rank: int) -> Ask:
    given = ask(request_id, prompt(len(request_id)))
    request = msgspec.structs.replace(given.request, service_rank=rank)
    return msgspec.structs.replace(given, request=request, tier="batch" if rank else "interactive")


async def test_a_better_rank_goes_first_whoever_came_first() -> None:
    router = Router("a")
    await router.begin(ask("one", prompt(1)))
    batch = await router.begin(ranked("batch", 2))
    agent = await router.begin(ranked("agent", 1))
    await router.first_token("one")
    assert (agent.done(), batch.done()) == (True, False)


async def test_tenants_take_turns_by_their_weights() -> None:
    tenants = {"a": {"limits": {"weight": 3}}, "b": {"limits": {"weight": 1}}}
    router = Router("a", tenants={"default": {}, **tenants})
    await router.begin(ask("first", prompt(1)))
    tasks = {}
    for number in range(2, 10):
        tenant = "ab"[number % 2]
        given = msgspec.structs.replace(ask(f"{tenant}{number}", prompt(number)), tenant=tenant)
        tasks[f"{tenant}{number}"] = await router.begin(given)
    order, before = list[str](), "first"
    for _ in tasks:
        router.finish(before)
        await router.settle()
        (before,) = {name for name, task in tasks.items() if task.done()} - set(order)
        order.append(before)
    assert "".join(name[0] for name in order) == "abaababb"


async def test_the_time_that_is_left_for_a_first_token_shrinks_while_it_waits() -> None:
    tiers = {"rules": {"interactive": {"rank": 0, "max_ttft_ms": 500.0}}}
    router = Router("a", tiers=tiers)
    await router.begin(ask("one", prompt(1)))
    second = await router.begin(ask("two", prompt(2)))
    assert not second.done()
    router.rig.now += 0.45
    router.routing._placement._passes.soon()
    await router.settle()
    with pytest.raises(Overloaded, match="workers; 50 ms are allowed"):
        second.result()
    router.finish("two", "refused")
    router.finish("one")
    assert router.left() == IDLE


async def test_a_worker_that_comes_takes_what_waits() -> None:
    """Serve's router may tell of it on another thread."""
    router = Router("a")
    await router.begin(ask("one", prompt(1)))
    second = await router.begin(ask("two", prompt(2)))
    members = {name: metadata(name) for name in "ab"}
    thread = threading.Thread(target=router.routing.set_members, args=(members,))
    thread.start()
    assert await second == "b"
    thread.join()


async def test_when_the_worker_it_waits_for_is_gone_it_goes_elsewhere_or_hears_it() -> None:
    router = Router("a", "b")
    router.rig.store("b-0", prompt(2))
    await router.begin(ask("one", prompt(1)))
    busy = await router.begin(ask("busy", prompt(3)))
    assert busy.done()
    waits = await router.begin(ask("two", [*prompt(2), *prompt(4)]))
    assert not waits.done()
    router.routing.set_members({})
    await router.settle()
    with pytest.raises(NotReady, match="none of 0 workers"):
        waits.result()


async def test_who_may_take_it_is_asked_when_it_goes() -> None:
    """The worker failed another request while this one waited."""
    router = Router("a", "b")
    await router.begin(ask("one", prompt(1)))
    await router.begin(ask("two", prompt(2)))
    failed = router.routing._in_flight["two"].route.worker
    third = await router.begin(ask("three", prompt(3)))
    assert not third.done()
    router.routing.attempts.failed("two")
    await router.settle()
    assert not third.done()  # its worker is idle, but suspected
    await router.first_token("one")
    assert third.result() != failed[:-2]


async def test_an_attempt_after_a_failure_keeps_its_age() -> None:
    router = Router("a", "b")
    for number, name in enumerate(("one", "old")):
        await router.begin(ask(name, prompt(number)))
    router.rig.now += 0.05
    young = await router.begin(ask("young", prompt(5, 380)))  # a little less to compute
    assert not young.done()
    router.routing.attempts.failed("old")
    old = await router.place("old")
    assert (old.done(), young.done()) == (False, False)
    await router.first_token("one")
    assert (old.done(), young.done()) == (True, False)


@pytest.mark.parametrize(("num_ingress", "bound"), [(1, 8), (2, 4), (3, 3)])
async def test_no_more_wait_here_than_the_gates_would_take(num_ingress: int, bound: int) -> None:
    executor = {"block_size": 4, "max_waiting_requests": 3}
    router = Router("a", "b", http={"num_ingress": num_ingress}, executor=executor)
    for number in range(bound):
        router.routing.begin(ask(f"q{number}", prompt(number)), Route())
    with pytest.raises(Overloaded, match=f"its bound is {bound} requests and any tokens"):
        router.routing.begin(ask("more", prompt(99)), Route())
    router.routing.set_members({})  # those of before are waited for
    with pytest.raises(Overloaded, match=f"its bound is {bound} requests"):
        router.routing.begin(ask("more", prompt(99)), Route())


async def test_no_more_tokens_wait_here_than_the_gates_would_take() -> None:
    executor = {"block_size": 4, "max_waiting_tokens": 500}
    router = Router("a", "b", executor=executor, admission={"max_waiting_tokens": 900})
    router.routing.begin(ask("one", prompt(1)), Route())
    router.routing.begin(ask("two", prompt(2)), Route())
    with pytest.raises(Overloaded, match="and 900 tokens"):
        router.routing.begin(ask("more", prompt(3)), Route())
    settings = msgspec.structs.replace(
        router.routing._settings,
        admission=msgspec.structs.replace(
            router.routing._settings.admission, max_waiting_tokens=None
        ),
    )
    router.routing.configure(settings)
    with pytest.raises(Overloaded, match="and 1000 tokens"):
        router.routing.begin(ask("more", prompt(3)), Route())
