"""Runs one HTTP generation request: body in, SSE or one JSON document out.

The response starts only when the first chunk is there, so that its headers can say where the
request went and an error before that has its own status. Leaving early, for whatever reason, aborts
what runs. Knows neither paths nor how a worker is chosen.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, TypeAlias

from serve_app.answer import Answer
from serve_app.asgi import (
    ClientGone,
    Receive,
    Scope,
    Send,
    header,
    read_json_body,
    send_bytes,
    send_json,
)
from serve_app.chat_writer import ChatWriter
from serve_app.completion_writer import CompletionWriter
from serve_app.envelope import DONE, Envelope, sse
from serve_app.executors.base import ExecutorInfo
from serve_app.feed import Feed
from serve_app.fleet import Fleet, Route
from serve_app.gather import gains, joined
from serve_app.http_errors import problem_of
from serve_app.stream import Delta
from serve_app.token_names import TokenNames
from serve_app.tokenizer import Tokenizer
from serve_app.work import Caller, Work

# A body larger than this is read, tokenized and hashed in a thread: the loop must not stand still.
LARGE_BODY = 4096  # bytes
# Headers tell the routes of this many prompts of one request.
MAX_HEADER_ROUTES = 8

Prepare: TypeAlias = Callable[[bytes, Caller, ExecutorInfo], Work]
Writer: TypeAlias = ChatWriter | CompletionWriter


async def prepared(
    prepare: Prepare, fleet: Fleet, scope: Scope, receive: Receive, max_bytes: int
) -> Work:
    """The request's Work. Raises InvalidRequest, NotReady or ClientGone."""
    body = await read_json_body(scope, receive, max_bytes)
    info = fleet.info()
    caller = Caller(
        header(scope, b"authorization"),
        header(scope, b"x-request-type"),
        header(scope, b"x-cachelane-pin"),
    )
    if len(body) > LARGE_BODY:
        return await asyncio.to_thread(prepare, body, caller, info)
    return prepare(body, caller, info)


class Generation:
    """An ASGI application for one route."""

    def __init__(
        self,
        fleet: Fleet,
        tokenizer: Tokenizer,
        prepare: Prepare,
        max_body_bytes: int,
        has_id_header: bool,
    ) -> None:
        self._fleet = fleet
        self._tokenizer = tokenizer
        self._names = TokenNames(tokenizer.token_bytes)
        self._prepare = prepare
        self._max_body_bytes = max_body_bytes
        self._has_id_header = has_id_header

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Never raises an error of the request; cancelling it aborts the request."""
        run = _Run(self._fleet, scope, send, self._has_id_header)
        try:
            work = await prepared(self._prepare, self._fleet, scope, receive, self._max_body_bytes)
            await run.work(work, receive, Answer(work, self._tokenizer), self._writer(work))
        except ClientGone:
            return
        except Exception as error:
            with contextlib.suppress(ClientGone):
                await run.fail(error)

    def _writer(self, work: Work) -> Writer:
        envelope = Envelope(work.request_id, work.created, work.model, work.has_usage_event)
        kind = ChatWriter if work.is_chat else CompletionWriter
        return kind(envelope, self._names, work.num_top)


class _Run:
    """One request's response."""

    def __init__(self, fleet: Fleet, scope: Scope, send: Send, has_id_header: bool) -> None:
        self._fleet = fleet
        self._server_send = send
        self._has_id_header = has_id_header
        self._client_id = header(scope, b"x-request-id")
        self._request_id = ""
        self._is_streaming = False

    async def work(self, work: Work, receive: Receive, answer: Answer, writer: Writer) -> None:
        self._request_id = work.request_id
        async with Feed(self._fleet, work.asks, receive) as feed:
            if work.is_stream:
                await self._stream(feed, answer, writer)
            else:
                await self._collect(feed, answer, writer, len(work.asks) * work.n)

    async def fail(self, error: Exception) -> None:
        self._request_id = self._request_id or f"req-{uuid.uuid4().hex}"
        problem = problem_of(error, self._request_id)
        if self._is_streaming:
            await self._write(sse(problem.body) + DONE, has_more=False)
            return
        headers = [*problem.headers, *self._id_headers()]
        await send_json(self._send, problem.status, problem.body, headers)

    async def _stream(self, feed: Feed, answer: Answer, writer: Writer) -> None:
        while not answer.is_finished:
            events = [writer.events(gain.choice, gain.delta) for gain in await gains(feed, answer)]
            if not self._is_streaming:
                await self._start_stream(feed.routes)
            data = b"".join(events)
            if answer.is_finished:
                data += writer.last_events(answer.usage())
            if data:
                await self._write(data, has_more=not answer.is_finished)

    async def _collect(self, feed: Feed, answer: Answer, writer: Writer, num_choices: int) -> None:
        deltas: list[list[Delta]] = [[] for _ in range(num_choices)]
        while not answer.is_finished:
            for gain in await gains(feed, answer):
                deltas[gain.choice].append(gain.delta)
        body = writer.document([joined(found) for found in deltas], answer.usage())
        headers = [*route_headers(feed.routes), *self._id_headers()]
        await send_bytes(self._send, 200, body, headers)

    async def _start_stream(self, routes: Sequence[Route]) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            *route_headers(routes),
            *self._id_headers(),
        ]
        self._is_streaming = True
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        try:
            await self._server_send(message)
        except OSError as error:  # what servers raise when the connection is gone
            raise ClientGone from error

    async def _write(self, data: bytes, has_more: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": has_more})

    def _id_headers(self) -> list[tuple[bytes, bytes]]:
        """The client's own id comes back to it; ours is unique and also the answer's `id`."""
        if not self._has_id_header:
            return []
        shown = self._client_id[:128] if self._client_id else self._request_id
        return [(b"x-request-id", shown.encode("latin-1"))]


def route_headers(routes: Sequence[Route]) -> list[tuple[bytes, bytes]]:
    """Where each prompt went, comma separated in prompt order; `-` for one not placed yet."""
    shown = routes[:MAX_HEADER_ROUTES]
    workers = [route.worker or "-" for route in shown]
    reasons = [route.reason or "-" for route in shown]
    predicted = [str(route.predicted_cached_tokens) for route in shown]
    return [
        (b"x-cachelane-worker", ",".join(workers).encode("latin-1", "replace")),
        (b"x-cachelane-reason", ",".join(reasons).encode("latin-1", "replace")),
        (b"x-cachelane-predicted-cached-tokens", ",".join(predicted).encode()),
    ]
