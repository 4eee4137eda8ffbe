"""RayFleet's attempts on a handle that answers by plan; no cluster, but Ray's exceptions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from ray.exceptions import ActorDiedError
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import DeploymentUnavailableError

from controllers.errors import (
    ExecutorDead,
    ExecutorError,
    InvalidRequest,
    NotReady,
    Overloaded,
    Overtaken,
    RateLimited,
    RequestAborted,
    WorkerFull,
)
from serve_app.executors.base import GenerateRequest, TokenChunk
from serve_app.fleet import Ask, Route
from serve_app.ray_fleet import RayFleet
from serve_app.wire import decode_call, encode_chunks, encode_failure
from tests.routing_rig import Rig, ask

pytestmark = pytest.mark.ray  # not a cluster, but seconds of imports

TOKENS = list(range(100, 120))
FIRST = TokenChunk(token_ids=(1,), cached_tokens=0)
LAST = TokenChunk(token_ids=(2,), finish_reason="length", cached_tokens=0)

Plan = list[bytes | Exception | asyncio.Event]


class Answers:
    """What a streaming handle call returns: it is placed, then answers by plan."""

    def __init__(self, place: Callable[[], Awaitable[Plan]], on_cancel: Callable[[], None]) -> None:
        self._place = place
        self.cancel = on_cancel

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for step in await self._place():
            if isinstance(step, Exception):
                raise step
            if isinstance(step, asyncio.Event):
                await step.wait()
            else:
                yield step


class Handle:
    """A deployment handle: places as the router does, then answers attempt by attempt."""

    def __init__(self, rig: Rig, plans: list[Plan]) -> None:
        self._rig = rig
        self._plans = iter(plans)
        self.workers: list[str] = []
        self.requests: list[GenerateRequest] = []
        self.num_cancelled = 0

    def options(self, **options: Any) -> Handle:
        return self

    def remote(self, *, request_id: str, call: bytes) -> Answers:
        return Answers(lambda: self._place(request_id), self._cancelled)

    async def _place(self, request_id: str) -> Plan:
        self.workers.append(await self._rig.routing.attempts.place(request_id))
        self.requests.append(
            decode_call(self._rig.routing.attempts.encode_call(request_id)).request
        )
        return next(self._plans)

    def _cancelled(self) -> None:
        self.num_cancelled += 1


def died() -> ActorDiedError:
    return ActorDiedError()


async def run(
    plans: list[Plan], n: int = 1, replicas: str = "ab", **sections: dict[str, Any]
) -> tuple[list[TokenChunk], Exception | None, Handle, Rig, Route]:
    rig = Rig(*replicas, **sections)
    rig.up(*(f"{replica}-0" for replica in replicas))
    handle = Handle(rig, plans)
    fleet = RayFleet(handle, rig.routing)
    route = Route()
    chunks: list[TokenChunk] = []
    error: Exception | None = None
    try:
        async for chunk in fleet.generate(ask("q", TOKENS, n), route):
            chunks.append(chunk)
    except (ExecutorError, NotReady, Overloaded) as raised:
        error = raised
    fleet.close()
    assert rig.routing._placement.num_reserved == 0
    assert rig.routing._in_flight == {}
    return chunks, error, handle, rig, route


async def test_a_worker_that_dies_before_the_first_chunk_is_replaced() -> None:
    chunks, error, handle, rig, route = await run([[died()], [encode_chunks([FIRST, LAST])]])
    assert (chunks, error) == ([FIRST, LAST], None)
    assert sorted(handle.workers) == ["a", "b"]
    assert route.num_attempts == 2
    assert [(d.status, d.num_attempts) for d in rig.decisions()] == [("ok", 2)]


@pytest.mark.parametrize(
    "failure",
    [died(), encode_failure(ExecutorDead("hangs")), encode_failure(RequestAborted("closed"))],
)
async def test_a_stream_goes_on_when_its_worker_fails(failure: bytes | Exception) -> None:
    plans: list[Plan] = [[encode_chunks([FIRST]), failure], [encode_chunks([LAST])]]
    chunks, error, handle, rig, route = await run(plans)
    assert (chunks, error) == ([FIRST, LAST], None)
    assert sorted(handle.workers) == ["a", "b"]
    first, second = handle.requests
    assert first == ask("q", TOKENS).request
    assert second == msgspec.structs.replace(
        first, token_ids=first.token_ids + (1).to_bytes(4, "little"), num_resumed=1
    )
    (decision,) = rig.decisions()
    assert (decision.status, decision.num_attempts, decision.prompt_tokens) == ("ok", 2, 20)
    assert (decision.output_tokens, decision.worker) == (2, route.worker)


async def test_a_worker_that_failed_is_left_out_for_other_requests_too() -> None:
    _, _, handle, rig, _ = await run([[died()], [encode_chunks([FIRST, LAST])]])
    dead, alive = handle.workers
    rig.store(f"{dead}-0", TOKENS)
    rig.routing.begin(ask("r", TOKENS), Route())
    assert await rig.routing.attempts.place("r") == alive
    rig.now += 5.0
    assert await rig.routing.attempts.place("r") == dead


@pytest.mark.parametrize(("n", "sections"), [(2, {}), (1, {"failover": {"resume_streams": False}})])
async def test_a_stream_that_cannot_go_on_is_an_error(n: int, sections: dict[str, Any]) -> None:
    chunks, error, handle, rig, _ = await run([[encode_chunks([FIRST]), died()]], n, **sections)
    assert chunks == [FIRST]
    assert isinstance(error, ExecutorDead)
    assert len(handle.workers) == 1
    assert [d.status for d in rig.decisions()] == ["error"]


async def test_a_stream_ends_when_nobody_is_left_to_go_on() -> None:
    chunks, error, handle, rig, _ = await run([[encode_chunks([FIRST]), died()], [died()]])
    assert chunks == [FIRST]
    assert isinstance(error, ExecutorDead)
    assert sorted(handle.workers) == ["a", "b"]
    assert [d.status for d in rig.decisions()] == ["error"]


async def test_executors_that_could_not_be_started_are_no_error_of_the_request() -> None:
    plans: list[Plan] = [[DeploymentUnavailableError(DeploymentID("Executor"))]]
    chunks, error, _, rig, _ = await run(plans)
    assert chunks == []
    assert isinstance(error, NotReady)
    assert [d.status for d in rig.decisions()] == ["error"]


async def test_attempts_are_bounded() -> None:
    plans: list[Plan] = [[died()], [encode_chunks([FIRST, LAST])]]
    chunks, error, _, _, _ = await run(plans, failover={"max_attempts": 1})
    assert chunks == []
    assert isinstance(error, ExecutorDead)


async def test_a_request_that_killed_a_worker_is_tried_on_one_more() -> None:
    _, error, handle, rig, _ = await run([[died()], [died()]], replicas="abcd")
    assert isinstance(error, ExecutorDead)
    assert len(set(handle.workers)) == 2
    assert [(d.status, d.num_attempts) for d in rig.decisions()] == [("error", 2)]


async def test_a_request_that_its_worker_refuses_as_invalid_is_no_failure_of_it() -> None:
    rig = Rig("a", "b")
    rig.up("a-0", "b-0")
    invalid = encode_failure(InvalidRequest("no such adapter", "model"))
    handle = Handle(rig, [[invalid] for _ in range(200)])
    fleet = RayFleet(handle, rig.routing)
    for _ in range(200):
        with pytest.raises(InvalidRequest, match="no such adapter"):
            await anext(fleet.generate(ask("q", TOKENS), Route()))
    fleet.close()
    assert len(handle.workers) == 200
    assert rig.routing._placement.suspects.among({"a-0", "b-0"}, rig.now) == set()


async def test_full_workers_do_not_use_up_the_attempts() -> None:
    full = encode_failure(WorkerFull("full", 2.0))
    plans: list[Plan] = [[full], [full], [died()], [encode_chunks([FIRST, LAST])]]
    chunks, error, handle, _, _ = await run(plans, replicas="abcd")
    assert (chunks, error) == ([FIRST, LAST], None)
    assert sorted(handle.workers) == ["a", "b", "c", "d"]


async def test_a_worker_that_dies_after_the_last_chunk_changes_nothing() -> None:
    chunks, error, _, rig, _ = await run([[encode_chunks([FIRST, LAST]), died()]])
    assert (chunks, error) == ([FIRST, LAST], None)
    assert [d.status for d in rig.decisions()] == ["ok"]


async def test_a_full_worker_passes_the_request_on() -> None:
    full = encode_failure(WorkerFull("full", 2.0))
    chunks, error, handle, _, _ = await run([[full], [encode_chunks([FIRST, LAST])]])
    assert (chunks, error) == ([FIRST, LAST], None)
    assert sorted(handle.workers) == ["a", "b"]


async def test_one_that_is_handed_back_is_sent_again_and_has_lost_no_attempt() -> None:
    back: Plan = [encode_failure(Overtaken("not the next one"))]
    failure: Plan = [died()]
    plans = [back, back, failure, [encode_chunks([FIRST, LAST])]]
    chunks, error, handle, _, route = await run(plans, failover={"max_attempts": 2})
    assert (chunks, error) == ([FIRST, LAST], None)
    first, second = handle.workers[:2]
    assert handle.workers == [first, second, first, second]
    assert first != second
    assert route.num_attempts == 2


async def test_when_all_are_full_the_client_hears_that_and_not_that_none_is_up() -> None:
    full = encode_failure(WorkerFull("full", 2.0))
    chunks, error, _, rig, _ = await run([[full], [full]])
    assert chunks == []
    assert isinstance(error, Overloaded)
    assert error.retry_after_s == 2.0
    assert [d.status for d in rig.decisions()] == ["refused"]
    assert rig.routing.describe()["routing"]["refused_by_tier"] == {"interactive": 1}


async def test_what_cannot_be_in_time_anywhere_is_not_offered_around() -> None:
    full = encode_failure(WorkerFull("full", 2.0))
    tiers = {"rules": {"interactive": {"max_ttft_ms": 1.0}}}
    rig = Rig("a", "b", tiers=tiers)
    rig.up("a-0", "b-0")
    for name in "xy":
        rig.routing.begin(ask(name, TOKENS), Route())
        await rig.routing.attempts.place(name)
    handle = Handle(rig, [[full]])
    with pytest.raises(Overloaded, match="on the best of 2 workers; 1 ms are allowed"):
        await anext(RayFleet(handle, rig.routing).generate(ask("q", TOKENS), Route()))
    assert handle.workers == []
    assert [d.status for d in rig.decisions()] == ["refused"]


async def test_who_has_to_give_way_hears_it_at_once_and_its_worker_stops() -> None:
    rig = Rig("a", admission={"max_waiting_requests": 1})
    rig.up("a-0")
    handle = Handle(rig, [[asyncio.Event()], [encode_chunks([FIRST, LAST])]])
    fleet = RayFleet(handle, rig.routing)
    batch = msgspec.structs.replace(
        ask("batch", TOKENS),
        request=msgspec.structs.replace(ask("batch", TOKENS).request, service_rank=2),
    )
    waits = asyncio.ensure_future(collect(fleet, batch))
    while not handle.workers:
        await asyncio.sleep(0)
    assert await collect(fleet, ask("chat", TOKENS)) == [FIRST, LAST]
    with pytest.raises(Overloaded, match="too many requests wait, others come first"):
        await waits
    assert handle.num_cancelled == 2  # also the one that has ended
    assert sorted((d.request_id, d.status) for d in rig.decisions()) == [
        ("batch", "refused"),
        ("chat", "ok"),
    ]
    assert (rig.routing._placement.num_reserved, rig.routing._in_flight) == (0, {})


async def test_a_tenant_over_its_limit_is_sent_nowhere() -> None:
    rig = Rig("a", tenants={"default": {"limits": {"max_requests_per_s": 0.1}}})
    rig.up("a-0")
    handle = Handle(rig, [[encode_chunks([FIRST, LAST])]])
    fleet = RayFleet(handle, rig.routing)
    assert await collect(fleet, ask("q", TOKENS)) == [FIRST, LAST]
    with pytest.raises(RateLimited, match="over 0.1 requests per second") as caught:
        await collect(fleet, ask("r", TOKENS))
    assert caught.value.retry_after_s == pytest.approx(10.0)
    assert len(handle.workers) == 1


async def collect(fleet: RayFleet, given: Ask) -> list[TokenChunk]:
    return [chunk async for chunk in fleet.generate(given, Route())]


# Pieces of 4 x (64 - 8) tokens.
SMALL = {"block_size": 4, "max_batched_tokens": 64, "max_batch_size": 8}
LONG = list(range(1000, 1600))
PIECE = encode_chunks([TokenChunk(token_ids=(99,), finish_reason="length", cached_tokens=8)])
NEXT_PIECE = encode_chunks([TokenChunk(token_ids=(98,), finish_reason="length", cached_tokens=224)])
REST = [
    TokenChunk(token_ids=(1,), cached_tokens=448),
    TokenChunk(token_ids=(2,), finish_reason="length", cached_tokens=448),
]


async def long_one(plans: list[Plan]) -> tuple[list[TokenChunk], Handle, Rig, Route]:
    rig = Rig("a", "b", executor=SMALL)
    rig.up("a-0", "b-0")
    handle, route = Handle(rig, plans), Route()
    fleet = RayFleet(handle, rig.routing)
    chunks = [chunk async for chunk in fleet.generate(ask("q", LONG), route)]
    fleet.close()
    routing = rig.routing.describe()["routing"]
    assert [routing[name] for name in ("in_flight", "waiting", "held", "reserved")] == [0, 0, 0, 0]
    return chunks, handle, rig, route


async def test_a_client_sees_nothing_of_the_pieces_of_its_prompt() -> None:
    chunks, handle, rig, route = await long_one([[PIECE], [NEXT_PIECE], [encode_chunks(REST)]])
    assert chunks == [msgspec.structs.replace(chunk, cached_tokens=8) for chunk in REST]
    assert [len(request.token_ids) // 4 for request in handle.requests] == [224, 448, 600]
    assert [request.request_id for request in handle.requests] == ["q/1", "q/2", "q"]
    assert len(set(handle.workers)) == 1
    (record,) = rig.decisions()
    assert (record.num_pieces, record.num_attempts, record.status) == (2, 1, "ok")
    assert (record.cached_tokens, record.output_tokens, record.prompt_tokens) == (8, 2, 600)
    assert (route.num_attempts, route.worker) == (1, record.worker)


async def test_a_worker_that_dies_in_a_piece_is_replaced() -> None:
    plans: list[Plan] = [[PIECE], [died()], [PIECE], [NEXT_PIECE], [encode_chunks(REST)]]
    chunks, handle, rig, _ = await long_one(plans)
    assert len(chunks) == 2
    first, *others = handle.workers
    assert others == [first, *[{"a": "b", "b": "a"}[first]] * 3]
    (record,) = rig.decisions()
    assert (record.num_pieces, record.num_attempts, record.status) == (3, 2, "ok")


async def test_a_client_that_leaves_in_a_piece_leaves_nothing() -> None:
    rig = Rig("a", executor=SMALL)
    rig.up("a-0")
    handle = Handle(rig, [[PIECE], [asyncio.Event()]])
    fleet = RayFleet(handle, rig.routing)
    task = asyncio.ensure_future(collect(fleet, ask("q", LONG)))
    while len(handle.workers) < 2:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    fleet.close()
    assert task.cancelled()
    assert [(d.status, d.num_pieces, d.output_tokens) for d in rig.decisions()] == [
        ("cancelled", 1, 0)
    ]
    assert (rig.routing._placement.num_reserved, rig.routing._in_flight) == (0, {})


async def test_a_warm_up_that_is_cut_is_computed_to_its_end() -> None:
    rig = Rig("a", executor=SMALL)
    rig.up("a-0")
    handle = Handle(rig, [[PIECE], [NEXT_PIECE], [encode_chunks(REST)]])
    fleet = RayFleet(handle, rig.routing)
    pinned = msgspec.structs.replace(ask("warm", LONG), pinned_worker="a-0")
    await fleet._run_quietly(pinned)
    fleet.close()
    assert [len(request.token_ids) // 4 for request in handle.requests] == [224, 448, 600]
    assert (rig.decisions(), rig.routing._placement.num_reserved) == ([], 0)
