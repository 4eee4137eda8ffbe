"""RayFleet's attempts on a handle that answers by plan; no cluster, but Ray's exceptions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from ray.exceptions import ActorDiedError

from controllers.errors import ExecutorDead, ExecutorError, NotReady, Overloaded, RequestAborted
from serve_app.executors.base import GenerateRequest, TokenChunk
from serve_app.fleet import Route
from serve_app.ray_fleet import RayFleet
from serve_app.wire import decode_call, encode_chunks, encode_failure
from tests.routing_rig import Rig, ask

pytestmark = pytest.mark.ray  # not a cluster, but seconds of imports

TOKENS = list(range(100, 120))
FIRST = TokenChunk(token_ids=(1,), cached_tokens=0)
LAST = TokenChunk(token_ids=(2,), finish_reason="length", cached_tokens=0)

Plan = list[bytes | Exception]


class Answers:
    """What a streaming handle call returns."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for step in self._plan:
            if isinstance(step, Exception):
                raise step
            yield step

    def cancel(self) -> None:
        pass


class Handle:
    """A deployment handle: places as the router does, then answers attempt by attempt."""

    def __init__(self, rig: Rig, plans: list[Plan]) -> None:
        self._rig = rig
        self._plans = iter(plans)
        self.workers: list[str] = []
        self.requests: list[GenerateRequest] = []

    def options(self, **options: Any) -> Handle:
        return self

    def remote(self, *, request_id: str, call: bytes) -> Answers:
        try:
            self.workers.append(self._rig.routing.place(request_id))
        except NotReady as error:
            return Answers([error])
        self.requests.append(decode_call(self._rig.routing.encode_call(request_id)).request)
        return Answers(next(self._plans))


def died() -> ActorDiedError:
    return ActorDiedError()


async def run(
    plans: list[Plan], n: int = 1, **sections: dict[str, Any]
) -> tuple[list[TokenChunk], Exception | None, Handle, Rig, Route]:
    rig = Rig("a", "b", **sections)
    rig.up("a-0", "b-0")
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
    plans = [[encode_chunks([FIRST]), failure], [encode_chunks([LAST])]]
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
    assert rig.routing.place("r") == alive
    rig.now += 5.0
    assert rig.routing.place("r") == dead


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


async def test_attempts_are_bounded() -> None:
    plans: list[Plan] = [[died()], [encode_chunks([FIRST, LAST])]]
    chunks, error, _, _, _ = await run(plans, failover={"max_attempts": 1})
    assert chunks == []
    assert isinstance(error, ExecutorDead)


async def test_a_worker_that_dies_after_the_last_chunk_changes_nothing() -> None:
    chunks, error, _, rig, _ = await run([[encode_chunks([FIRST, LAST]), died()]])
    assert (chunks, error) == ([FIRST, LAST], None)
    assert [d.status for d in rig.decisions()] == ["ok"]


async def test_a_full_worker_passes_the_request_on() -> None:
    full = encode_failure(Overloaded("full", 2.0))
    chunks, error, handle, _, _ = await run([[full], [encode_chunks([FIRST, LAST])]])
    assert (chunks, error) == ([FIRST, LAST], None)
    assert sorted(handle.workers) == ["a", "b"]


async def test_when_all_are_full_the_client_hears_that_and_not_that_none_is_up() -> None:
    full = encode_failure(Overloaded("full", 2.0))
    chunks, error, _, rig, _ = await run([[full], [full]])
    assert chunks == []
    assert isinstance(error, Overloaded)
    assert error.retry_after_s == 2.0
    assert [d.status for d in rig.decisions()] == ["error"]
