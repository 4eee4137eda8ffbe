"""What gRPC has and HTTP has not: deadlines, health, reflection, limits, trailers, stopping."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from controllers.errors import SetupError
from infra.ports import is_listening
from infra.settings import to_settings
from serve_app.fleet import Ask, Route
from serve_app.local_fleet import LocalFleet
from serve_app.proto import cachelane_pb2 as pb
from serve_app.proto import cachelane_pb2_grpc
from tests.edge_clients import GrpcEdge, grpc_edge, message_of, refusal_of, server_of
from tests.edge_fixtures import PlannedExecutor, TestEdge

HI = {"prompt": "Hi", "max_tokens": 4}
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def inside_of(
    executor: PlannedExecutor | None = None, fleet: Any = None, **sections: Any
) -> TestEdge:
    grpc_section = {"port": 0, **sections.pop("grpc", {})}
    return TestEdge(executor, {**sections, "grpc": grpc_section}, fleet)


async def code_of(call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return str(caught.value.code().name)


async def idle(inside: TestEdge) -> None:
    """Returns when nothing runs; the test's own time limit says how long that may take."""
    while inside.executor.num_running or inside.fleet.describe()["num_running"]:
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_clients_deadline_aborts(is_stream: bool) -> None:
    inside = inside_of(PlannedExecutor(hold_after=2))
    async with grpc_edge(inside) as edge:
        method = edge.stub.GenerateStream if is_stream else edge.stub.Generate
        call = method(message_of(HI), timeout=0.2)
        assert await code_of(drained(call) if is_stream else call) == "DEADLINE_EXCEEDED"
        await idle(inside)
    assert inside.executor.num_completed == 0


async def drained(call: Any) -> None:
    async for _ in call:
        pass


@pytest.mark.parametrize("is_stream", [False, True])
async def test_the_servers_own_limit_of_time(is_stream: bool) -> None:
    inside = inside_of(PlannedExecutor(hold_after=2), http={"request_timeout_s": 0.2})
    async with grpc_edge(inside) as edge:
        call = edge.call(HI, is_stream)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await (drained(call) if is_stream else call)
        await idle(inside)
    refusal = refusal_of(caught.value, {})
    assert (refusal.code, refusal.reason) == ("DEADLINE_EXCEEDED", "TIMEOUT")
    assert refusal.message == "the request was not done after 0.2 s"


async def test_more_requests_than_an_ingress_runs_are_refused() -> None:
    inside = inside_of(PlannedExecutor(hold_after=2), grpc={"max_ongoing_requests": 1})
    async with grpc_edge(inside) as edge:
        first = edge.begin(HI, is_stream=True)
        await inside.executor.held.wait()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await edge.call(HI, False)
        refusal = refusal_of(caught.value, {})
        assert (refusal.code, refusal.reason) == ("UNAVAILABLE", "OVERLOADED")
        assert refusal.retry_after_s == 1
        first.cancel()
        await idle(inside)
        inside.executor.hold_after = None
        assert (await edge.ask(HI)).reasons == {0: "length"}


async def test_a_message_over_the_limit_is_refused_and_hurts_nobody() -> None:
    inside = inside_of(grpc={"max_message_bytes": 1000})
    async with grpc_edge(inside) as edge:
        assert await code_of(edge.call({"prompt": "x" * 1000}, False)) == "RESOURCE_EXHAUSTED"
        assert inside.executor.requests == []
        assert (await edge.ask(HI)).reasons == {0: "length"}


@pytest.mark.parametrize("method", ["Generate", "GenerateStream", "Chat", "RouteExplain"])
@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x0a\x02\xff\xfe"])  # the second: no UTF-8
async def test_what_is_no_message_is_a_bad_request(
    method: str, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    inside = inside_of()
    async with grpc_edge(inside) as edge:
        kind = "unary_stream" if method.endswith("Stream") else "unary_unary"
        call = getattr(edge.channel, kind)(f"/cachelane.v1.Cachelane/{method}")(data)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await (drained(call) if kind == "unary_stream" else call)
        refusal = refusal_of(caught.value, {})
        assert (refusal.code, refusal.param) == ("INVALID_ARGUMENT", "request")
        assert "class" not in str(caught.value.details())
        assert (await edge.ask(HI)).reasons == {0: "length"}
    assert caplog.text == ""


async def test_token_ids_come_back_up_to_a_stop_string() -> None:
    inside = inside_of(PlannedExecutor(text="abcdefgh", chunk_size=3))
    async with grpc_edge(inside) as edge:
        answer = await edge.stub.Generate(message_of({**HI, "max_tokens": 8, "stop": ["de"]}))
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == ("abc", "stop")
    assert bytes(choice.token_ids) == b"abcde"
    assert answer.usage.completion_tokens == 5


async def test_log_probabilities_of_a_completion() -> None:
    inside = inside_of(PlannedExecutor(text="ab"))
    async with grpc_edge(inside) as edge:
        answer = await edge.stub.Generate(message_of({**HI, "max_tokens": 1, "logprobs": 2}))
    (token,) = answer.choices[0].logprobs
    assert token.chosen == pb.TokenLogprob(token_id=97, text=b"a", logprob=-0.5)
    assert [(top.token_id, top.logprob) for top in token.top] == [(97, -0.5), (257, -1.5)]


async def test_trailers_of_good_and_failed_calls() -> None:
    async with grpc_edge(inside_of()) as edge:
        call = edge.call(HI, False, metadata=[("x-request-id", "mine" * 100)])
        answer = await call
        trailers = dict(await call.trailing_metadata())
        assert trailers == {
            "x-request-id": ("mine" * 100)[:128],
            "x-cachelane-worker": "local/0",
            "x-cachelane-reason": "cold",
            "x-cachelane-predicted-cached-tokens": "0",
        }
        call = edge.call(HI, True)
        ids = {chunk.id async for chunk in call}
        assert {dict(await call.trailing_metadata())["x-request-id"]} == ids
        assert answer.id not in ids
        call = edge.call({"prompt": ""}, False)
        await code_of(call)
        trailers = dict(await call.trailing_metadata())
        assert trailers.keys() == {"x-request-id", "grpc-status-details-bin"}
        assert trailers["x-request-id"].startswith("req-")


class Pins(LocalFleet):
    """Remembers which worker was asked for."""

    def __init__(self) -> None:
        super().__init__(PlannedExecutor())
        self.pins: list[str | None] = []

    def generate(self, ask: Ask, route: Route) -> AsyncIterator[Any]:
        self.pins.append(ask.pinned_worker)
        return super().generate(ask, route)


async def test_a_worker_can_be_asked_for() -> None:
    fleet = Pins()
    async with grpc_edge(inside_of(fleet=fleet)) as edge:
        await edge.ask({**HI, "pin": "a-0"}, x_cachelane_pin="b-0")
        await edge.ask(HI, x_cachelane_pin="b-0")
        await edge.ask(HI)
    assert fleet.pins == ["a-0", "b-0", None]


async def test_a_route_of_nothing() -> None:
    async with grpc_edge(inside_of()) as edge:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await edge.stub.RouteExplain(pb.RouteExplainRequest())
    assert refusal_of(caught.value, {}).param == "request"


async def test_a_failing_read_tells_no_secret() -> None:
    class Broken(LocalFleet):
        def describe(self) -> dict[str, Any]:
            raise RuntimeError("secret")

    async with grpc_edge(inside_of(fleet=Broken(PlannedExecutor()))) as edge:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await edge.stub.Fleet(pb.FleetRequest())
    refusal = refusal_of(caught.value, {})
    assert (refusal.code, refusal.reason) == ("INTERNAL", "INTERNAL_ERROR")
    assert "secret" not in str(caught.value)


async def test_a_long_prompt_is_prepared_beside_the_loop() -> None:
    inside = inside_of()
    is_beside: list[bool] = []
    encode = inside.tokenizer.encode

    def watched(text: str, *, parse_special: bool = True) -> list[int]:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            is_beside.append(True)
        else:
            is_beside.append(False)
        return encode(text, parse_special=parse_special)

    inside.tokenizer.encode = watched  # type: ignore[method-assign]
    async with grpc_edge(inside) as edge:
        await edge.ask({"prompt": "a"})
        assert await code_of(edge.call({"prompt": "x" * 5000}, False)) == "INVALID_ARGUMENT"
    assert is_beside == [False, True]


class Readiness(LocalFleet):
    def __init__(self) -> None:
        super().__init__(PlannedExecutor())
        self.reason: str | None = "no worker is up"

    def readiness(self) -> str | None:
        return self.reason


def check(service: str) -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=service)


async def test_health_follows_readiness() -> None:
    fleet = Readiness()
    async with grpc_edge(inside_of(fleet=fleet)) as edge:
        health = health_pb2_grpc.HealthStub(edge.channel)
        watch = health.Watch(check("cachelane.v1.Cachelane"))
        assert (await watch.read()).status == NOT_SERVING
        assert (await health.Check(check(""))).status == NOT_SERVING
        fleet.reason = None
        assert (await watch.read()).status == SERVING
        assert (await health.Check(check("cachelane.v1.Cachelane"))).status == SERVING
        found = (await health.List(health_pb2.HealthListRequest())).statuses
        assert {name: status.status for name, status in found.items()} == {
            "": SERVING, "cachelane.v1.Cachelane": SERVING,
        }  # fmt: skip
        assert await code_of(health.Check(check("nope"))) == "NOT_FOUND"
        unknown = health.Watch(check("nope"))
        assert (await unknown.read()).status == UNKNOWN
        unknown.cancel()
        watch.cancel()


async def test_reflection_describes_the_service() -> None:
    async with grpc_edge(inside_of()) as edge:
        stub = reflection_pb2_grpc.ServerReflectionStub(edge.channel)
        asked = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="cachelane.v1.Cachelane"),
        ]
        services, file = [answer async for answer in stub.ServerReflectionInfo(iter(asked))]
    assert {service.name for service in services.list_services_response.service} == {
        "cachelane.v1.Cachelane",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    described = file.file_descriptor_response.file_descriptor_proto
    assert pb.DESCRIPTOR.serialized_pb in described


async def test_new_settings_take_effect_for_the_next_call() -> None:
    inside = inside_of()
    server = server_of(inside)
    port = await server.start()
    async with channel_to(port) as channel:
        edge = GrpcEdge(channel)
        await edge.ask(HI)
        server.configure(to_settings({"tenants": {"default": {"api_keys": ["k"]}}}))
        assert await code_of(edge.call(HI, False)) == "UNAUTHENTICATED"
        await edge.ask(HI, authorization="Bearer k")
    await server.stop(0)


def channel_to(port: int) -> Any:
    options = [("grpc.enable_http_proxy", 0)]
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)


async def test_stopping_lets_calls_end_and_lets_watchers_go() -> None:
    inside = inside_of(PlannedExecutor(text="abcdefgh", delay_s=0.01))
    server = server_of(inside)
    port = await server.start()
    async with channel_to(port) as channel:
        watch = aiter(health_pb2_grpc.HealthStub(channel).Watch(check("")))
        assert (await anext(watch)).status == SERVING
        call = aiter(cachelane_pb2_grpc.CachelaneStub(channel).GenerateStream(message_of(HI)))
        chunks = [await anext(call)]
        stopping = asyncio.create_task(server.stop(20))
        chunks += [chunk async for chunk in call]
        assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "abcd"
        assert [message.status async for message in watch] == [NOT_SERVING]
        await stopping
    assert not is_listening(port)


async def test_stopping_aborts_what_takes_too_long() -> None:
    inside = inside_of(PlannedExecutor(hold_after=2))
    server = server_of(inside)
    port = await server.start()
    async with channel_to(port) as channel:
        call = cachelane_pb2_grpc.CachelaneStub(channel).Generate(message_of(HI))
        waiting = asyncio.ensure_future(code_of(call))
        await inside.executor.held.wait()
        await server.stop(0.05)
        assert await waiting in {"UNAVAILABLE", "CANCELLED"}
    await idle(inside)


async def test_processes_share_a_port_but_not_with_strangers() -> None:
    first, inside = server_of(inside_of()), inside_of()
    port = await first.start()
    second = server_of(inside_of(grpc={"port": port}))
    assert await second.start() == port
    await first.stop(0)
    async with channel_to(port) as channel:
        await GrpcEdge(channel).ask(HI)
    await second.stop(0)
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        taken = stranger.getsockname()[1]
        with pytest.raises(SetupError, match=f"cannot listen on 127.0.0.1:{taken}"):
            await server_of(inside_of(grpc={"port": taken})).start()
    assert inside.executor.requests == []
