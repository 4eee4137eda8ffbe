"""Request bodies of the OpenAI-style endpoints, and how a body becomes one of them.

Owns types, value ranges and the path in an error. Knows no vocabulary, tenant, model or fleet.
Types are strict (`"5"`, `5.0` and `true` are not integers); null means absent; fields that nobody
here knows are kept aside and ignored, except those that `protocol_checks` refuses because ignoring
them would change the answer.
"""

from __future__ import annotations

import reprlib
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema

from controllers.errors import InvalidRequest

MAX_STOP_STRINGS = 4
MAX_CHOICES = 128  # n
MAX_LOGPROBS = 20
MAX_SHOWN = 60  # characters of a value in an error message

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = MAX_SHOWN

_STRING_OR_LIST = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_CONTENT = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                "required": ["type", "text"],
            },
        },
    ]
}
_TOKEN_IDS = {"type": "array", "items": {"type": "integer"}}
_PROMPT = {"anyOf": [*_STRING_OR_LIST["anyOf"], _TOKEN_IDS, {"type": "array", "items": _TOKEN_IDS}]}
_RETENTION = {
    "type": "array",
    "description": "Prompt tokens [start, end) are kept with this retention priority.",
    "items": {
        "type": "object",
        "properties": {
            "start": {"type": "integer", "minimum": 0},
            "end": {"type": ["integer", "null"]},
            "retention_priority": {"type": "integer", "minimum": 0, "maximum": 100},
            "duration_s": {"type": ["number", "null"], "exclusiveMinimum": 0},
        },
        "required": ["start", "retention_priority"],
        "additionalProperties": False,
    },
}

Bias = Annotated[float, Field(ge=-100, le=100)]


class Body(BaseModel):
    """An object of the wire."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class Message(Body):
    role: str
    content: Annotated[Any, WithJsonSchema(_CONTENT)] = None


class StreamOptions(Body):
    include_usage: bool | None = None


class GenerationBody(Body):
    """What chat and text completions share."""

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: Annotated[Any, WithJsonSchema(_STRING_OR_LIST)] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Bias] | None = None

    top_k: Annotated[int, Field(ge=-1)] | None = None  # -1 and 0: off
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None

    request_type: str | None = None
    retention: Annotated[Any, WithJsonSchema(_RETENTION)] = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None  # wins over max_tokens
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: Annotated[Any, WithJsonSchema(_PROMPT)] = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None


AnyBody = TypeVar("AnyBody", bound=Body)


def parse(model: type[AnyBody], data: bytes) -> AnyBody:
    """JSON bytes -> body. Raises InvalidRequest for the first fault, naming its path."""
    if not data.strip():
        raise InvalidRequest("", "the body is empty, it must be a JSON object")
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise _explain(error) from None


def shown(value: object) -> str:
    """The value for an error message, cut to a readable length however large it is."""
    text = _short.repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def path_of(location: tuple[int | str, ...]) -> str:
    """('retention', 0, 'start') -> 'retention[0].start'."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return "".join(parts).lstrip(".")[:200]


def _explain(error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False, include_context=False)[0]
    path, message = path_of(first["loc"]), first["msg"].replace("Input should", "must")
    if first["type"] == "json_invalid":
        return InvalidRequest("", f"the body is not JSON: {message.removeprefix('Invalid JSON: ')}")
    if not path:
        return InvalidRequest("", f"the body must be a JSON object, got {shown(first['input'])}")
    if first["type"] == "missing":
        return InvalidRequest(path, "required, but absent", "missing_required_parameter")
    return InvalidRequest(path, f"{message}, got {shown(first['input'])}")
