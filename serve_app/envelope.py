"""What every piece of one answer repeats (id, time, model), and pieces -> SSE or JSON bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from serve_app.responses import Usage

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


class Envelope:
    """One answer. `has_usage_event`: the client asked for usage in the stream."""

    def __init__(
        self, request_id: str, created: int, model: str, has_usage_event: bool = False
    ) -> None:
        self._head: dict[str, Any] = {
            "id": request_id,
            "object": "",
            "created": created,
            "model": model,
            "system_fingerprint": None,
        }
        self._has_usage_event = has_usage_event
        self._chunk_start = b""
        self._chunk_end = b'],"usage":null}\n\n' if has_usage_event else b"]}\n\n"

    def event(self, kind: str, choice: object) -> bytes:
        """One SSE event with one choice. `kind` is the same in every call."""
        if not self._chunk_start:
            head = _encode({**self._head, "object": kind})
            self._chunk_start = b"data: " + head[:-1] + b',"choices":['
        return self._chunk_start + _encode(choice) + self._chunk_end

    def last_events(self, kind: str, usage: Usage) -> bytes:
        """What ends a stream: the usage, if it was asked for, and the end mark."""
        if not self._has_usage_event:
            return DONE
        body = {**self._head, "object": kind, "choices": [], "usage": usage}
        return sse(body) + DONE

    def document(self, kind: str, choices: Sequence[object], usage: Usage) -> bytes:
        """The answer in one piece."""
        return _encode({**self._head, "object": kind, "choices": choices, "usage": usage})


def sse(body: object) -> bytes:
    """One SSE event."""
    return b"data: " + _encode(body) + b"\n\n"


def json_bytes(body: object) -> bytes:
    """Compact JSON."""
    return _encode(body)
