"""One gRPC call: its metadata, its time, its trailers, how it fails. Knows no request or answer."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Sequence
from typing import Any, NoReturn, TypeAlias, TypeVar

from serve_app.fleet import Route
from serve_app.generation import route_headers
from serve_app.grpc_errors import STATUS_KEY, grpc_problem
from serve_app.http_errors import HttpProblem, error_body, problem_of
from serve_app.work import Caller

Context: TypeAlias = Any  # grpc.aio.ServicerContext; grpcio has no types
T = TypeVar("T")

MAX_ID = 128  # characters of a client's own id that it gets back


class Call:
    """`routes` and `request_id` are filled in while the call runs."""

    def __init__(self, context: Context, timeout_s: float | None) -> None:
        self.request_id = ""
        self.routes: Sequence[Route] = ()
        self._context = context
        self._timeout_s = timeout_s
        self._ends_at = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        self._metadata: dict[str, Any] = dict(context.invocation_metadata() or ())

    def caller(self, pin: str) -> Caller:
        """`pin`: the request's own, which wins over the metadata's."""
        return Caller(
            self._get("authorization"),
            self._get("x-request-type"),
            pin or self._get("x-cachelane-pin"),
        )

    async def in_time(self, work: Awaitable[T]) -> T:
        """The result. Raises asyncio.TimeoutError at the server's own limit of time.

        The client's deadline needs no care: grpc cancels the call.
        """
        if self._ends_at is None:
            return await work
        left_s = self._ends_at - asyncio.get_running_loop().time()
        return await asyncio.wait_for(work, max(0.0, left_s))

    def succeed(self) -> None:
        """Sets what goes out after the last message."""
        self._context.set_trailing_metadata(self._trailers())

    async def fail(self, error: Exception) -> NoReturn:
        """Ends the call. Errors nobody expected are logged; the client gets no traceback."""
        self.request_id = self.request_id or f"req-{uuid.uuid4().hex}"
        problem = grpc_problem(self._problem_of(error))
        trailers = (*self._trailers(), (STATUS_KEY, problem.status))
        await self._context.abort(problem.code, problem.message, trailers)
        raise AssertionError("abort returned")

    def _problem_of(self, error: Exception) -> HttpProblem:
        if not isinstance(error, asyncio.TimeoutError):
            return problem_of(error, self.request_id)
        message = f"the request was not done after {self._timeout_s} s"
        return HttpProblem(504, [], error_body(message, "server_error", code="timeout"))

    def _trailers(self) -> tuple[tuple[str, str], ...]:
        """The client's own id comes back to it; ours is also the answer's `id`."""
        shown = (self._get("x-request-id") or self.request_id)[:MAX_ID]
        ids = [("x-request-id", shown)] if shown else []
        routes = route_headers(self.routes) if self.routes else []
        return (*ids, *((key.decode(), value.decode("latin-1")) for key, value in routes))

    def _get(self, name: str) -> str | None:
        value = self._metadata.get(name)
        return value.strip() or None if isinstance(value, str) else None
