"""One way to ask either edge, HTTP or gRPC, and one shape for what it says; all in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
from google.protobuf import json_format
from google.rpc import error_details_pb2, status_pb2

from serve_app.chat import Chat
from serve_app.grpc_ingress import GrpcServer
from serve_app.proto import cachelane_pb2 as pb
from serve_app.proto import cachelane_pb2_grpc
from tests.edge_fixtures import CHAT, COMPLETION, RawClient, TestEdge, events_of

TIMEOUT_S = 20.0
CODE_BY_HTTP_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


@dataclass
class Reply:
    """What a client learns of a request that was answered."""

    texts: dict[int, str]
    reasons: dict[int, str]
    usage: dict[str, int]
    route: dict[str, str]  # worker, reason, predicted-cached-tokens
    logprobs: list[tuple[float, list[float]]] = field(default_factory=list)
    num_pieces: int = 1


@dataclass
class Refusal(Exception):
    """`texts`: what came before it."""

    code: str  # of gRPC
    reason: str
    param: str | None
    message: str
    retry_after_s: int | None
    texts: dict[int, str] = field(default_factory=dict)


class Edge(Protocol):
    """`ask`: fields of a completion body, or of a chat body if it has messages."""

    async def ask(
        self, fields: Mapping[str, Any], *, is_stream: bool = False, **metadata: str
    ) -> Reply: ...

    async def explain(self, fields: Mapping[str, Any]) -> dict[str, Any]: ...

    async def fleet(self) -> dict[str, Any]: ...

    def begin(self, fields: Mapping[str, Any], *, is_stream: bool) -> asyncio.Task[Any]:
        """A request whose client leaves when the task is cancelled."""
        ...


class HttpEdge:
    def __init__(self, edge: TestEdge) -> None:
        self._edge = edge

    async def ask(
        self, fields: Mapping[str, Any], *, is_stream: bool = False, **metadata: str
    ) -> Reply:
        extra = {"stream": True, "stream_options": {"include_usage": True}} if is_stream else {}
        path = CHAT if "messages" in fields else COMPLETION
        headers = {name.replace("_", "-"): value for name, value in metadata.items()}
        response = await self._edge.post(path, {**fields, **extra}, **headers)
        route = {
            name.removeprefix("x-cachelane-"): value
            for name, value in response.headers.items()
            if name.startswith("x-cachelane-")
        }
        if response.status_code != 200:
            retry = response.headers.get("retry-after")
            raise _http_refusal(response.status_code, response.json()["error"], retry)
        return _http_reply(events_of(response) if is_stream else [response.json()], route)

    async def explain(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        response = await self._edge.post("/fleet/route", dict(fields))
        if response.status_code != 200:
            raise _http_refusal(response.status_code, response.json()["error"], None)
        (decision,) = response.json()["data"]
        return dict(decision)

    async def fleet(self) -> dict[str, Any]:
        async with self._edge.client() as client:
            return dict((await client.get("/fleet")).json())

    def begin(self, fields: Mapping[str, Any], *, is_stream: bool) -> asyncio.Task[Any]:
        async def run() -> None:
            path = CHAT if "messages" in fields else COMPLETION
            client = RawClient(self._edge.app, path, {**fields, "stream": is_stream})
            try:
                await asyncio.shield(client.task)
            except asyncio.CancelledError:
                client.leave()
                await client.task
                raise

        return asyncio.ensure_future(run())


def _http_refusal(
    status: int, error: Mapping[str, Any], retry: str | None, texts: dict[int, str] | None = None
) -> Refusal:
    return Refusal(
        CODE_BY_HTTP_STATUS[status],
        (error["code"] or error["type"]).upper(),
        error["param"],
        error["message"],
        None if retry is None else int(retry),
        texts or {},
    )


def _http_reply(events: list[Any], route: dict[str, str]) -> Reply:
    reply = Reply({}, {}, {}, route, num_pieces=0)
    for event in events:
        if event == "[DONE]":
            break
        if "error" in event:  # its status went out long before
            status = 503 if event["error"]["code"] == "worker_failed" else 500
            raise _http_refusal(status, event["error"], None, reply.texts)
        usage = event.get("usage")
        if usage is not None:
            details = usage["prompt_tokens_details"]
            reply.usage = {k: v for k, v in usage.items() if k != "prompt_tokens_details"} | details
        for choice in event["choices"]:
            _add_http_choice(reply, choice)
    return reply


def _add_http_choice(reply: Reply, choice: Mapping[str, Any]) -> None:
    index, content = choice["index"], choice.get("message") or choice.get("delta") or choice
    text = content.get("text") or content.get("content") or ""
    reply.num_pieces += bool(text)
    reply.texts[index] = reply.texts.get(index, "") + text
    if choice["finish_reason"] is not None:
        reply.reasons[index] = choice["finish_reason"]
    for entry in (choice.get("logprobs") or {}).get("content") or ():
        tops = [top["logprob"] for top in entry["top_logprobs"]]
        reply.logprobs.append((entry["logprob"], tops))


class GrpcEdge:
    """`stub` and `channel` for what HTTP does not have."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.stub = cachelane_pb2_grpc.CachelaneStub(channel)

    async def ask(
        self, fields: Mapping[str, Any], *, is_stream: bool = False, **metadata: str
    ) -> Reply:
        given = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
        call = self.call(fields, is_stream, metadata=given)
        reply = Reply({}, {}, {}, {}, num_pieces=0)
        try:
            if is_stream:
                async for chunk in call:
                    _add_grpc_message(reply, chunk)
            else:
                _add_grpc_message(reply, await call)
        except grpc.aio.AioRpcError as error:
            raise refusal_of(error, reply.texts) from None
        trailers = {k: v for k, v in await call.trailing_metadata() if k.startswith("x-cachelane-")}
        reply.route = {k.removeprefix("x-cachelane-"): v for k, v in trailers.items()}
        return reply

    def call(self, fields: Mapping[str, Any], is_stream: bool, **options: Any) -> Any:
        is_chat = "messages" in fields
        name = ("Chat" if is_chat else "Generate") + ("Stream" if is_stream else "")
        return getattr(self.stub, name)(message_of(fields), timeout=TIMEOUT_S, **options)

    async def explain(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        kind = "chat" if "messages" in fields else "generate"
        try:
            answer = await self.stub.RouteExplain(
                pb.RouteExplainRequest(**{kind: message_of(fields)})
            )
        except grpc.aio.AioRpcError as error:
            raise refusal_of(error, {}) from None
        found = plain(answer.decision)
        assert (answer.worker, answer.reason) == (found["worker"], found["reason"])
        assert answer.predicted_cached_tokens == found["predicted_cached_tokens"]
        assert answer.num_prompt_tokens == found["num_prompt_tokens"]
        return found

    async def fleet(self) -> dict[str, Any]:
        return plain((await self.stub.Fleet(pb.FleetRequest())).fleet)

    def begin(self, fields: Mapping[str, Any], *, is_stream: bool) -> asyncio.Task[Any]:
        async def run() -> None:
            call = self.call(fields, is_stream)
            if not is_stream:
                await call
                return
            async for _ in call:
                pass

        return asyncio.ensure_future(run())


def message_of(fields: Mapping[str, Any]) -> Any:
    """The message with the fields of a JSON body."""
    given = dict(fields)
    if "messages" in given:
        return pb.ChatRequest(**given)
    prompt = given.pop("prompt", None)
    if isinstance(prompt, str):
        given["text"] = prompt
    elif prompt is not None:
        given["token_ids"] = pb.TokenIds(ids=prompt)
    return pb.GenerateRequest(**given)


def plain(struct: Any) -> dict[str, Any]:
    """A google.protobuf.Struct as JSON values."""
    return dict(json.loads(json_format.MessageToJson(struct)))


def refusal_of(error: grpc.aio.AioRpcError, texts: dict[int, str]) -> Refusal:
    """Checks that code and message of the call agree with its google.rpc.Status."""
    trailers = dict(error.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    assert (status.code, status.message) == (error.code().value[0], error.details())
    assert "Traceback" not in error.details()
    info, violations = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    has_field = has_retry = False
    for detail in status.details:
        detail.Unpack(info)
        has_field |= detail.Unpack(violations)
        has_retry |= detail.Unpack(retry)
    assert info.domain == "cachelane"
    return Refusal(
        error.code().name,
        info.reason,
        violations.field_violations[0].field if has_field else None,
        error.details(),
        retry.retry_delay.seconds if has_retry else None,
        texts,
    )


def _add_grpc_message(reply: Reply, message: Any) -> None:
    if message.HasField("usage"):
        names = ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens")
        reply.usage = {name: getattr(message.usage, name) for name in names}
    for choice in message.choices:
        reply.num_pieces += bool(choice.text)
        reply.texts[choice.index] = reply.texts.get(choice.index, "") + choice.text
        if choice.finish_reason:
            reply.reasons[choice.index] = choice.finish_reason
        for token in choice.logprobs:
            reply.logprobs.append((token.chosen.logprob, [top.logprob for top in token.top]))


@asynccontextmanager
async def grpc_edge(edge: TestEdge) -> AsyncIterator[GrpcEdge]:
    """A server on a free port over the edge's own fleet, and a client of it."""
    server = server_of(edge)
    port = await server.start()
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)]
    ) as channel:
        yield GrpcEdge(channel)
    await server.stop(0)


def server_of(edge: TestEdge) -> GrpcServer:
    """`edge`'s settings should have grpc.port 0."""
    return GrpcServer(edge.fleet, edge.tokenizer, Chat(edge.tokenizer), edge.settings)
