"""Messages that are no messages: answered like any other bad request.

grpc itself would end the call as UNKNOWN with the name of a Python class, and log a traceback for
every one of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from controllers.errors import InvalidRequest
from serve_app.grpc_call import Call, Context

Behaviour: TypeAlias = Callable[[Any, Context], Awaitable[Any]]


class _Unreadable:
    """Stands for the message."""

    def __init__(self, why: str) -> None:
        self.why = why


class UnreadableMessages(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Of the methods below `prefix`, all of which take one message."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        handler = await continuation(details)
        if handler is None or not details.method.startswith(self._prefix):
            return handler
        if handler.response_streaming:
            make, behaviour = grpc.unary_stream_rpc_method_handler, handler.unary_stream
        else:
            make, behaviour = grpc.unary_unary_rpc_method_handler, handler.unary_unary
        return make(
            _refusing(behaviour),
            request_deserializer=_lenient(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )


def _lenient(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> Any:
        try:
            return read(data)
        except DecodeError as error:
            return _Unreadable(str(error))

    return decode


def _refusing(behaviour: Behaviour) -> Behaviour:
    async def call(request: Any, context: Context) -> Any:
        if isinstance(request, _Unreadable):
            await Call(context, None).fail(InvalidRequest("request", request.why))
        return await behaviour(request, context)

    return call
