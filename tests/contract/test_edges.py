"""HTTP and gRPC are one edge: the same cases give the same answers and the same refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from controllers.errors import (
    ExecutorDead,
    ExecutorError,
    InvalidRequest,
    NotReady,
    Overloaded,
    RateLimited,
)
from serve_app.executors.base import ExecutorInfo
from serve_app.local_fleet import LocalFleet
from tests.edge_clients import Edge, HttpEdge, Refusal, Reply, grpc_edge
from tests.edge_fixtures import MAX_SEQ_LEN, PlannedExecutor, TestEdge

EDGES = ("http", "grpc")
HI = [{"role": "user", "content": "Hi"}]

GOOD: dict[str, dict[str, Any]] = {
    "text": {"prompt": "Hi there, edge", "max_tokens": 9},
    "token ids": {"prompt": [72, 105, 32, 0], "max_tokens": 9},
    "default length": {"prompt": "Hi"},
    "over the limit": {"prompt": "Hi", "max_tokens": 10 * MAX_SEQ_LEN},
    "chat": {"messages": HI, "max_tokens": 9},
    "a conversation": {
        "messages": [
            {"role": "developer", "content": "Be brief."},
            *HI,
            {"role": "assistant", "content": ""},
            {"role": "user", "content": "Straße 🙂"},
        ],
        "max_tokens": 9,
    },
    "choices": {"prompt": "Hi", "n": 3, "max_tokens": 30},
    "stop string": {"prompt": "Hi", "stop": ["naïve", "never"], "max_tokens": 60},
    "log probabilities": {
        "messages": HI, "logprobs": True, "top_logprobs": 2, "max_tokens": 20, "stop": ["東"],
    },
    "every field": {
        "prompt": "Hi there, all of you", "model": "test-model", "max_tokens": 7,
        "temperature": 0.3, "top_p": 0.9, "top_k": -1, "min_p": 0.1, "n": 2, "seed": -5,
        "stop": ["zzz"], "stop_token_ids": [3, 4], "min_tokens": 2, "ignore_eos": True,
        "presence_penalty": -1.5, "frequency_penalty": 2, "logit_bias": {5: -100.0, 7: 1.5},
        "request_type": "batch", "cache_salt": "mine", "logprobs": 1,
        "retention": [
            {"start": 0, "end": 8, "retention_priority": 70, "duration_s": 2.5},
            {"start": 8, "retention_priority": 0},
        ],
    },
}  # fmt: skip

BAD: dict[str, tuple[dict[str, Any], str | None]] = {
    "no messages": ({"messages": []}, "messages"),
    "no role": ({"messages": [{"content": "x"}]}, "messages[0].role"),
    "unknown role": ({"messages": [*HI, {"role": "tool", "content": "x"}]}, "messages[1].role"),
    "no content": ({"messages": [{"role": "user"}]}, "messages[0].content"),
    "top_logprobs alone": ({"messages": HI, "top_logprobs": 2}, "top_logprobs"),
    "top_logprobs 21": ({"messages": HI, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "max_tokens 0": ({"prompt": "Hi", "max_tokens": 0}, "max_tokens"),
    "max_tokens -1": ({"messages": HI, "max_tokens": -1}, "max_tokens"),
    "temperature -1": ({"prompt": "Hi", "temperature": -1.0}, "temperature"),
    "temperature NaN": ({"prompt": "Hi", "temperature": float("nan")}, "temperature"),
    "top_p infinite": ({"prompt": "Hi", "top_p": float("inf")}, "top_p"),
    "top_k -2": ({"prompt": "Hi", "top_k": -2}, "top_k"),
    "n 0": ({"prompt": "Hi", "n": 0}, "n"),
    "n 129": ({"prompt": "Hi", "n": 129}, "n"),
    "five stops": ({"prompt": "Hi", "stop": list("abcde")}, "stop"),
    "empty stop": ({"prompt": "Hi", "stop": ["a", ""]}, "stop[1]"),
    "bias beyond": ({"prompt": "Hi", "logit_bias": {191222: -100.0}}, "logit_bias"),
    "bias of -1": ({"prompt": "Hi", "logit_bias": {-1: 5.0}}, "logit_bias"),
    "bias of 1000": ({"prompt": "Hi", "logit_bias": {5: 1000.0}}, "logit_bias.5"),
    "no prompt": ({"max_tokens": 4}, "prompt"),
    "empty prompt": ({"prompt": ""}, "prompt"),
    "no token ids": ({"prompt": []}, "prompt"),
    "beyond the vocabulary": ({"prompt": [1, 259]}, "prompt[1]"),
    "negative token id": ({"prompt": [-1]}, "prompt[0]"),
    "too long": ({"prompt": "x" * MAX_SEQ_LEN}, "prompt"),
    "much too long": ({"messages": [{"role": "user", "content": "x" * 9000}]}, "messages"),
    "unknown type": ({"prompt": "Hi", "request_type": "nope"}, "request_type"),
    "empty salt": ({"prompt": "Hi", "cache_salt": ""}, "cache_salt"),
    "unknown model": ({"prompt": "Hi", "model": "gpt-4"}, "model"),
    "retention 101": ({"prompt": "Hi", "retention": [{"start": 0, "retention_priority": 101}]},
                      "retention[0].retention_priority"),
    "retention of nothing": ({"prompt": "Hi", "retention": [{"start": 0}]},
                             "retention[0].retention_priority"),
    "open end in the middle": (
        {"prompt": "Hi", "retention": [{"start": 0, "retention_priority": 50},
                                       {"start": 1, "retention_priority": 40}]},
        "retention[0].end",
    ),
    "overlapping ranges": (
        {"prompt": "Hi you", "retention": [{"start": 0, "end": 4, "retention_priority": 50},
                                           {"start": 2, "end": 5, "retention_priority": 40}]},
        "retention[1].start",
    ),
    "endless duration": (
        {"prompt": "Hi", "retention": [
            {"start": 0, "retention_priority": 50, "duration_s": float("inf")}]},
        "retention[0].duration_s",
    ),
}  # fmt: skip


@asynccontextmanager
async def edge_named(
    name: str,
    executor: PlannedExecutor | None = None,
    settings: Mapping[str, Any] | None = None,
    fleet: Any = None,
) -> AsyncIterator[tuple[Edge, TestEdge]]:
    inside = TestEdge(executor, {**(settings or {}), "grpc": {"port": 0}}, fleet)
    if name == "http":
        yield HttpEdge(inside), inside
        return
    async with grpc_edge(inside) as edge:
        yield edge, inside


async def refusal(
    edge: Edge, fields: Mapping[str, Any], *, is_stream: bool = False, **metadata: str
) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await edge.ask(fields, is_stream=is_stream, **metadata)
    return caught.value


async def reply(name: str, fields: Mapping[str, Any], is_stream: bool) -> tuple[Reply, Any]:
    """The answer of a fresh edge, and what its executor was asked."""
    async with edge_named(name) as (edge, inside):
        found = await edge.ask(fields, is_stream=is_stream)
        (request,) = inside.executor.requests
        assert inside.executor.num_running == 0
    found.num_pieces = 0  # how often a stream says something is a matter of time
    return found, {
        key: getattr(request, key)
        for key in request.__struct_fields__
        if key != "request_id"
    }  # fmt: skip


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("case", sorted(GOOD))
async def test_both_ask_and_answer_the_same(case: str, is_stream: bool) -> None:
    http, grpc = [await reply(name, GOOD[case], is_stream) for name in EDGES]
    if "prompt" in GOOD[case]:  # HTTP writes those of completions in another shape
        grpc[0].logprobs.clear()
    assert grpc == http
    assert http[0].usage["completion_tokens"] > 0
    assert http[0].route == {
        "worker": "local/0", "reason": "cold", "predicted-cached-tokens": "0",
    }  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.parametrize("case", sorted(GOOD))
async def test_a_stream_is_the_answer_in_pieces(name: str, case: str) -> None:
    (whole, _), (streamed, _) = [await reply(name, GOOD[case], flag) for flag in (False, True)]
    whole.logprobs.clear()
    streamed.logprobs.clear()
    assert streamed == whole


@pytest.mark.parametrize("name", EDGES)
async def test_a_paced_stream_comes_token_by_token(name: str) -> None:
    executor = PlannedExecutor(text="abcdefgh", delay_s=0.01)
    async with edge_named(name, executor) as (edge, _):
        found = await edge.ask({"prompt": "Hi", "max_tokens": 6}, is_stream=True)
    assert found.texts == {0: "abcdef"}
    assert found.num_pieces > 1


@pytest.mark.parametrize("name", EDGES)
async def test_cached_tokens_are_told(name: str) -> None:
    async with edge_named(name) as (edge, _):
        await edge.ask({"prompt": "x" * 20})
        again = await edge.ask({"prompt": "x" * 20}, is_stream=True)
        other = await edge.ask({"prompt": "x" * 20, "cache_salt": "another"})
    assert again.usage["cached_tokens"] == 16
    assert again.route == {
        "worker": "local/0", "reason": "overlap", "predicted-cached-tokens": "16",
    }  # fmt: skip
    assert other.usage["cached_tokens"] == 0


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("case", sorted(BAD))
async def test_both_refuse_the_same(case: str, is_stream: bool) -> None:
    fields, param = BAD[case]
    found = []
    for name in EDGES:
        async with edge_named(name) as (edge, inside):
            found.append(await refusal(edge, fields, is_stream=is_stream))
            assert inside.executor.requests == []
            assert (await edge.ask({"prompt": "Hi"})).reasons == {0: "length"}
    http, grpc = found
    assert (grpc.code, grpc.param, grpc.retry_after_s) == (http.code, http.param, None)
    assert http.param == param
    assert http.code == ("NOT_FOUND" if case == "unknown model" else "INVALID_ARGUMENT")
    is_absence = grpc.reason == "MISSING_REQUIRED_PARAMETER"
    # An empty list and none at all are one thing in a message.
    assert is_absence or (grpc.reason, grpc.message) == (http.reason, http.message)


FAILURES: dict[str, tuple[Exception, str, str, int | None]] = {
    "invalid": (InvalidRequest("prompt", "no"), "INVALID_ARGUMENT", "INVALID_REQUEST_ERROR", None),
    "not ready": (NotReady("no worker", 3.2), "UNAVAILABLE", "NOT_READY", 4),
    "overloaded": (Overloaded("full", 0.2), "UNAVAILABLE", "OVERLOADED", 1),
    "too often": (RateLimited("wait", 7), "RESOURCE_EXHAUSTED", "RATE_LIMIT_EXCEEDED", 7),
    "dead": (ExecutorDead("it died"), "UNAVAILABLE", "WORKER_FAILED", 1),
    "failed": (ExecutorError("it failed"), "INTERNAL", "WORKER_FAILED", None),
    "a bug": (RuntimeError("secret"), "INTERNAL", "INTERNAL_ERROR", None),
}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("name", EDGES)
@pytest.mark.parametrize("case", sorted(FAILURES))
async def test_an_executor_that_fails(case: str, name: str, is_stream: bool) -> None:
    error, *expected = FAILURES[case]
    async with edge_named(name, PlannedExecutor(fail_after=0, error=error)) as (edge, inside):
        found = await refusal(edge, {"prompt": "Hi", "max_tokens": 4}, is_stream=is_stream)
        assert inside.executor.num_running == 0
    assert [found.code, found.reason, found.retry_after_s] == expected
    assert "secret" not in found.message
    assert found.texts == {}


@pytest.mark.parametrize("name", EDGES)
async def test_an_executor_that_dies_in_mid_stream(name: str) -> None:
    executor = PlannedExecutor(text="abcdefgh", fail_after=3, error=ExecutorDead("it died"))
    async with edge_named(name, executor) as (edge, _):
        found = await refusal(edge, {"prompt": "Hi", "max_tokens": 8}, is_stream=True)
    assert (found.code, found.reason, found.message) == ("UNAVAILABLE", "WORKER_FAILED", "it died")
    assert found.texts == {0: "abc"} or name == "http"  # HTTP may drop what came with the error


@pytest.mark.parametrize("name", EDGES)
async def test_tenants_are_told_by_their_key(name: str) -> None:
    tenants = {"default": {"api_keys": ["d"]}, "a": {"api_keys": ["k"], "salt": "s"}}
    async with edge_named(name, settings={"tenants": tenants}) as (edge, inside):
        for authorization in ("", "Bearer nobody", "k"):
            found = await refusal(edge, {"prompt": "Hi"}, authorization=authorization)
            assert (found.code, found.reason, found.param) == (
                "UNAUTHENTICATED", "INVALID_API_KEY", None,
            )  # fmt: skip
        await edge.ask({"messages": HI}, authorization="Bearer k")
        await edge.ask({"prompt": "Hi"}, authorization="Bearer d")
    assert [request.tenant for request in inside.executor.requests] == ["a", "default"]


@pytest.mark.parametrize("name", EDGES)
async def test_the_type_of_a_request_by_metadata(name: str) -> None:
    async with edge_named(name) as (edge, inside):
        await edge.ask({"prompt": "Hi"}, x_request_type="batch")
        await edge.ask({"prompt": "Hi", "request_type": "agent"}, x_request_type="batch")
        found = await refusal(edge, {"prompt": "Hi"}, x_request_type="nope")
    assert found.param == "request_type"
    assert [request.tier for request in inside.executor.requests] == ["batch", "agent"]


class Unready(LocalFleet):
    def info(self) -> ExecutorInfo:
        raise NotReady("no worker has said what it is", 5)


@pytest.mark.parametrize("name", EDGES)
async def test_a_fleet_that_is_not_ready(name: str) -> None:
    async with edge_named(name, fleet=Unready(PlannedExecutor())) as (edge, _):
        found = await refusal(edge, {"prompt": "Hi"})
        with pytest.raises(Refusal) as explained:
            await edge.explain({"prompt": "Hi"})
    for it in (found, explained.value):
        assert (it.code, it.reason) == ("UNAVAILABLE", "NOT_READY")
    assert found.retry_after_s == 5


@pytest.mark.parametrize("name", EDGES)
async def test_a_route_is_explained_and_the_fleet_described(name: str) -> None:
    async with edge_named(name) as (edge, inside):
        await edge.ask({"prompt": "x" * 20})
        assert await edge.explain({"prompt": "x" * 20}) == {
            "worker": "local/0", "reason": "overlap", "predicted_cached_tokens": 16,
            "num_prompt_tokens": 20, "num_blocks": 2,
        }  # fmt: skip
        assert (await edge.explain({"messages": HI}))["num_prompt_tokens"] == 21
        with pytest.raises(Refusal) as caught:
            await edge.explain({"prompt": ""})
        assert caught.value.param == "prompt"
        assert await edge.fleet() == inside.fleet.describe()
        assert len(inside.executor.requests) == 1


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("name", EDGES)
async def test_a_client_that_leaves_frees_everything(name: str, is_stream: bool) -> None:
    executor = PlannedExecutor(hold_after=2)
    async with edge_named(name, executor) as (edge, inside):
        task = edge.begin({"prompt": "Hi", "n": 2, "max_tokens": 8}, is_stream=is_stream)
        await executor.held.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await idle(inside)
    assert executor.num_completed == 0


async def idle(inside: TestEdge) -> None:
    """Returns when nothing runs; the test's own time limit says how long that may take."""
    while inside.executor.num_running or inside.fleet.describe()["num_running"]:
        await asyncio.sleep(0.005)
