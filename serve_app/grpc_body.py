"""Messages of the gRPC interface -> the JSON bodies of the HTTP API, which are checked there.

A field that is not set is absent; names and paths stay the same. Knows no rule of a request.
"""

from __future__ import annotations

import json
from collections.abc import MutableMapping, MutableSequence
from typing import Any

from google.protobuf.message import Message


def body_of(request: Message) -> bytes:
    """A GenerateRequest or ChatRequest as a body of /v1/completions or /v1/chat/completions."""
    fields = {field.name: _plain(value) for field, value in request.ListFields()}
    fields.pop("pin", None)  # not of the body: HTTP has a header for it
    for kind in ("text", "token_ids"):
        if kind in fields:
            prompt = fields.pop(kind)
            fields["prompt"] = prompt if kind == "text" else prompt.get("ids", [])
    # Unlike msgspec, this writes NaN and Infinity as such, and the check of the body refuses them.
    return json.dumps(fields, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return {field.name: _plain(item) for field, item in value.ListFields()}
    if isinstance(value, MutableMapping):
        return dict(value)
    if isinstance(value, MutableSequence):
        is_nested = bool(value) and isinstance(value[0], Message)
        return [_plain(item) for item in value] if is_nested else list(value)
    return value
