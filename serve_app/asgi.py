"""The little of ASGI that the endpoints need: a bounded body, headers, answers in one piece."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, TypeAlias

from controllers.errors import InvalidRequest
from serve_app.envelope import json_bytes
from serve_app.http_errors import BODY_TOO_LARGE

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

JSON_TYPE = (b"content-type", b"application/json")


class ClientGone(Exception):
    """The client closed its connection; nobody reads an answer."""


def header(scope: Scope, name: bytes) -> str | None:
    """The last header of that (lower-case) name, without surrounding spaces; None if empty."""
    values = [value for key, value in scope["headers"] if key == name]
    return values[-1].decode("latin-1").strip() or None if values else None


async def read_json_body(scope: Scope, receive: Receive, max_bytes: int) -> bytes:
    """The whole body. Raises InvalidRequest (not JSON by its header, too large) or ClientGone."""
    _check_kind(scope)
    length = header(scope, b"content-length")
    if length is not None and length.isdecimal() and int(length[:20]) > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    num_bytes, has_more = 0, True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        num_bytes += len(part)
        if num_bytes > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
        has_more = message.get("more_body", False)
    return b"".join(parts)


async def send_bytes(send: Send, status: int, body: bytes, headers: Headers = ()) -> None:
    """A whole JSON response."""
    length = (b"content-length", str(len(body)).encode())
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [JSON_TYPE, length, *headers],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, status: int, value: object, headers: Headers = ()) -> None:
    await send_bytes(send, status, json_bytes(value), headers)


def _check_kind(scope: Scope) -> None:
    kind = header(scope, b"content-type")
    if kind is not None and not kind.lower().partition(";")[0].strip().endswith("json"):
        raise InvalidRequest("", f"content-type must be application/json, got {kind[:60]!r}")
    encoding = header(scope, b"content-encoding")
    if encoding not in {None, "identity"}:
        raise InvalidRequest("", f"content-encoding {str(encoding)[:60]!r} is not supported")


def _too_large(max_bytes: int) -> InvalidRequest:
    return InvalidRequest("", f"the body is larger than {max_bytes} bytes", BODY_TOO_LARGE)
