"""What the types of a body cannot say: fields that are refused, fields that come in several shapes.

A field is refused when ignoring it would change the answer; anything else unknown is ignored.

Raises InvalidRequest with the path of the fault. Knows no vocabulary, model or tenant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from controllers.errors import InvalidRequest
from serve_app.protocol import (
    MAX_STOP_STRINGS,
    Body,
    ChatBody,
    CompletionBody,
    GenerationBody,
    Message,
    shown,
)

ROLES = ("system", "developer", "user", "assistant")

# Field -> the values (besides null) under which the answer is right without support for the field.
_EMPTY: tuple[Any, ...] = ([], {}, "")
_REFUSED_ANYWHERE: dict[str, tuple[Any, ...]] = {
    "echo": (False,),
    "suffix": ("",),
    "response_format": ({"type": "text"},),
    "tools": _EMPTY,
    "functions": _EMPTY,
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (0, False),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "allowed_token_ids": (),
    "bad_words": _EMPTY,
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template": (),
    "chat_template_kwargs": _EMPTY,
    "documents": _EMPTY,
}
_REFUSED_IN_MESSAGES: dict[str, tuple[Any, ...]] = {
    "tool_calls": _EMPTY,
    "function_call": (),
    "audio": (),
}


def check_chat(body: ChatBody) -> None:
    """Everything about a chat body that needs neither model nor tenant."""
    extra = body.model_extra or {}
    if extra.get("prompt") is not None:
        raise InvalidRequest("prompt", "a chat has messages, not a prompt; use /v1/completions")
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs", "needs logprobs to be true")
    if extra.get("best_of") is not None:
        raise InvalidRequest("best_of", "is not a field of chat completions; use n")
    _check_shared(body)


def check_completion(body: CompletionBody) -> None:
    """Everything about a completion body that needs neither model nor tenant."""
    extra = body.model_extra or {}
    if extra.get("messages") is not None:
        raise InvalidRequest("messages", "a completion has a prompt; use /v1/chat/completions")
    if body.prompt is None:
        raise InvalidRequest("prompt", "required, but absent", "missing_required_parameter")
    best_of = extra.get("best_of")
    if best_of is not None and (type(best_of) is not int or best_of != (body.n or 1)):
        raise InvalidRequest("best_of", f"is not supported unless equal to n, got {shown(best_of)}")
    _check_shared(body)


def plain_message(message: Message, index: int) -> dict[str, str]:
    """{role, content} for the chat template.

    Text parts are joined by newlines and any other part is refused by name; the role `developer` is
    what newer OpenAI models call `system`.
    """
    path = f"messages[{index}]"
    if message.role not in ROLES:
        raise InvalidRequest(
            f"{path}.role", f"must be one of {', '.join(ROLES)}, got {shown(message.role)}"
        )
    _refuse(message, _REFUSED_IN_MESSAGES, f"{path}.")
    role = "system" if message.role == "developer" else message.role
    return {"role": role, "content": _content_text(message.content, f"{path}.content")}


def stop_strings(stop: object) -> tuple[str, ...]:
    """The field `stop`: null, a string or up to four strings, none of them empty."""
    if stop is None:
        return ()
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list):
        raise InvalidRequest("stop", f"must be a string or a list of strings, got {shown(stop)}")
    if len(stops) > MAX_STOP_STRINGS:
        raise InvalidRequest("stop", f"has {len(stops)} strings, at most {MAX_STOP_STRINGS}")
    for index, text in enumerate(stops):
        if not isinstance(text, str) or not text:
            path = f"stop[{index}]" if isinstance(stop, list) else "stop"
            raise InvalidRequest(path, f"must be a non-empty string, got {shown(text)}")
    return tuple(dict.fromkeys(stops))


def prompts_of(prompt: object) -> list[str | list[int]]:
    """The field `prompt`: a string, strings, token ids, or lists of token ids; never empty."""
    if isinstance(prompt, str):
        return [_non_empty(prompt, "prompt")]
    if not isinstance(prompt, list):
        raise InvalidRequest("prompt", f"must be a string or a list, got {shown(prompt)}")
    if not prompt:
        raise InvalidRequest("prompt", "must not be empty")
    if type(prompt[0]) is int:
        return [_ids(prompt, "prompt")]
    reader = _prompt_reader(prompt[0])
    return [reader(item, f"prompt[{index}]") for index, item in enumerate(prompt)]


def _prompt_reader(first: object) -> Callable[[object, str], str | list[int]]:
    return _ids if isinstance(first, list) else _text


def _text(item: object, path: str) -> str:
    if not isinstance(item, str):
        raise InvalidRequest(path, f"must be a string like the first prompt, got {shown(item)}")
    return _non_empty(item, path)


def _ids(item: object, path: str) -> list[int]:
    if not isinstance(item, list):
        raise InvalidRequest(path, f"must be a list of token ids, got {shown(item)}")
    if not item:
        raise InvalidRequest(path, "must not be empty")
    if set(map(type, item)) != {int}:
        index = next(i for i, token in enumerate(item) if type(token) is not int)
        raise InvalidRequest(f"{path}[{index}]", f"{shown(item[index])} is not a token id")
    return item


def _non_empty(text: str, path: str) -> str:
    if not text:
        raise InvalidRequest(path, "must not be empty")
    return text


def _check_shared(body: GenerationBody) -> None:
    _refuse(body, _REFUSED_ANYWHERE, "")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options", "is allowed only when stream is true")


def _refuse(body: Body, refused: Mapping[str, tuple[Any, ...]], prefix: str) -> None:
    for name, value in (body.model_extra or {}).items():
        if value is None or name not in refused:
            continue
        if not any(value == harmless for harmless in refused[name]):
            message = f"is not supported here, got {shown(value)}"
            raise InvalidRequest(f"{prefix}{name}", message, "unsupported_parameter")


def _content_text(content: object, path: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(path, f"must be a string or a list of parts, got {shown(content)}")
    if not content:
        raise InvalidRequest(path, "must not be an empty list")
    return "\n".join(_part_text(part, f"{path}[{index}]") for index, part in enumerate(content))


def _part_text(part: object, path: str) -> str:
    if not isinstance(part, dict):
        raise InvalidRequest(path, f"must be an object with a type, got {shown(part)}")
    if part.get("type") != "text":
        raise InvalidRequest(
            f"{path}.type", f"only text parts are supported, got {shown(part.get('type'))}"
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{path}.text", f"must be a string, got {shown(text)}")
    return text
