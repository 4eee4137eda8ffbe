"""The RPCs of `cachelane.v1.Cachelane`: what each answers.

Bodies are checked and prepared, run and ended by the code that serves HTTP (`prepare`, `feed`,
`gather`, `http_errors`); here is only the wire.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, TypeVar

from google.protobuf.struct_pb2 import Struct

from controllers.errors import InvalidRequest, Overloaded
from infra.settings import Settings
from serve_app.answer import Answer, Gain
from serve_app.chat import Chat
from serve_app.envelope import json_bytes
from serve_app.feed import Feed
from serve_app.fleet import Fleet
from serve_app.gather import gains
from serve_app.generation import LARGE_BODY, Prepare
from serve_app.grpc_body import body_of
from serve_app.grpc_call import Call, Context
from serve_app.grpc_writer import GrpcWriter
from serve_app.prepare import Preparer
from serve_app.proto import cachelane_pb2 as pb
from serve_app.token_names import TokenNames
from serve_app.tokenizer import Tokenizer
from serve_app.work import Work

T = TypeVar("T")

Request: TypeAlias = pb.GenerateRequest | pb.ChatRequest


class CachelaneService:
    """Generated code finds the methods by the names of the RPCs."""

    def __init__(
        self, fleet: Fleet, tokenizer: Tokenizer, template: Chat | None, settings: Settings
    ) -> None:
        self._fleet = fleet
        self._tokenizer = tokenizer
        self._template = template
        self._names = TokenNames(tokenizer.token_bytes)
        self._num_ongoing = 0
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Takes effect for the next call."""
        self._preparer = Preparer(self._tokenizer, self._template, settings)
        self._settings = settings

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> pb.Answer:
        return await self._one(request, self._preparer.completion, context)

    async def GenerateStream(self, request: pb.GenerateRequest, context: Context) -> None:
        await self._many(request, self._preparer.completion, context)

    async def Chat(self, request: pb.ChatRequest, context: Context) -> pb.Answer:
        return await self._one(request, self._preparer.chat, context)

    async def ChatStream(self, request: pb.ChatRequest, context: Context) -> None:
        await self._many(request, self._preparer.chat, context)

    async def RouteExplain(
        self, request: pb.RouteExplainRequest, context: Context
    ) -> pb.RouteExplainResponse:
        return await self._ended(self._call(context), lambda call: self._explain(request, call))

    async def Fleet(self, _: pb.FleetRequest, context: Context) -> pb.FleetResponse:
        async def describe(_: Call) -> pb.FleetResponse:
            return pb.FleetResponse(fleet=_struct(self._fleet.describe()))

        return await self._ended(self._call(context), describe)

    async def _one(self, request: Request, prepare: Prepare, context: Context) -> pb.Answer:
        return await self._ended(
            self._call(context), lambda call: self._collect(request, prepare, call)
        )

    async def _many(self, request: Request, prepare: Prepare, context: Context) -> None:
        await self._ended(
            self._call(context), lambda call: self._stream(request, prepare, call, context)
        )

    def _call(self, context: Context) -> Call:
        return Call(context, self._settings.http.request_timeout_s)

    async def _ended(self, call: Call, run: Callable[[Call], Awaitable[T]]) -> T:
        try:
            result = await run(call)
        except Exception as error:
            failure = error
        else:
            call.succeed()
            return result
        await call.fail(failure)

    async def _collect(self, request: Request, prepare: Prepare, call: Call) -> pb.Answer:
        found: list[Gain] = []
        async with self._running(request, prepare, call) as (work, answer, feed):
            while not answer.is_finished:
                found += await call.in_time(gains(feed, answer))
        return GrpcWriter(work, self._names).answer(found, answer.usage())

    async def _stream(
        self, request: Request, prepare: Prepare, call: Call, context: Context
    ) -> None:
        async with self._running(request, prepare, call) as (work, answer, feed):
            writer = GrpcWriter(work, self._names)
            while not answer.is_finished:
                found = await call.in_time(gains(feed, answer))
                usage = answer.usage() if answer.is_finished else None
                chunk = writer.chunk(found, usage)
                if chunk is not None:
                    await call.in_time(context.write(chunk))

    @asynccontextmanager
    async def _running(
        self, request: Request, prepare: Prepare, call: Call
    ) -> AsyncIterator[tuple[Work, Answer, Feed]]:
        """Leaving it aborts what still runs."""
        limit = self._settings.grpc.max_ongoing_requests
        if self._num_ongoing >= limit:
            raise Overloaded(f"{limit} gRPC requests are running here already")
        self._num_ongoing += 1
        try:
            work = await self._work(request, prepare, call)
            async with Feed(self._fleet, work.asks, _never) as feed:
                call.routes = feed.routes
                yield work, Answer(work, self._tokenizer), feed
        finally:
            self._num_ongoing -= 1

    async def _work(self, request: Request, prepare: Prepare, call: Call) -> Work:
        """Raises InvalidRequest or NotReady."""
        info = self._fleet.info()
        caller = call.caller(request.pin)

        def read() -> Work:
            return prepare(body_of(request), caller, info)

        is_large = request.ByteSize() > LARGE_BODY
        work = await asyncio.to_thread(read) if is_large else read()
        call.request_id = work.request_id
        return work

    async def _explain(
        self, request: pb.RouteExplainRequest, call: Call
    ) -> pb.RouteExplainResponse:
        kind = request.WhichOneof("request")
        if kind is None:
            raise InvalidRequest("request", "required, but absent", "missing_required_parameter")
        is_chat = kind == "chat"
        prepare = self._preparer.chat if is_chat else self._preparer.completion
        work = await self._work(request.chat if is_chat else request.generate, prepare, call)
        decision = self._fleet.explain(work.asks[0])
        return pb.RouteExplainResponse(
            worker=decision["worker"] or "",
            reason=decision["reason"] or "",
            predicted_cached_tokens=decision["predicted_cached_tokens"],
            num_prompt_tokens=work.asks[0].num_tokens,
            decision=_struct(decision),
        )


async def _never() -> MutableMapping[str, Any]:
    """A client that leaves cancels its call, so there is no news to wait for."""
    await asyncio.Event().wait()
    return {}


def _struct(value: dict[str, Any]) -> Struct:
    """As the JSON of the HTTP API would have it."""
    struct = Struct()
    struct.update(json.loads(json_bytes(value)))
    return struct
