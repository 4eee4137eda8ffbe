"""Chat messages to a prompt, and which of its tokens are system, history and current turn.

Owns: the Jinja sandbox (jinja2's only importer) and where the spans end.
Does not know: what is kept in a cache for how long, or how a message was checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from controllers.errors import InvalidRequest, ModelFileError
from serve_app.tokenizer import Tokenizer

Message = Mapping[str, Any]
SYSTEM_ROLES = ("system", "developer")
_PROBE: tuple[Message, ...] = (
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "a"},
)


@dataclass(frozen=True, slots=True)
class Spans:
    """Token indices: system [0, system_end), history [system_end, history_end), then the turn.

    The current turn is the last user message, whatever follows it, and the generation prompt.
    `is_exact` False: the template rewrites earlier text when messages are added, so the parts
    cannot be told apart; all tokens then count as the current turn.
    """

    system_end: int
    history_end: int
    num_tokens: int
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    text: str
    token_ids: list[int]
    spans: Spans


class Chat:
    """The chat template of one model with its tokenizer. Raises ModelFileError for a broken one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        if tokenizer.chat_template is None:
            raise ModelFileError("the model has no chat template")
        self._tokenizer = tokenizer
        try:
            self._template = _environment().from_string(tokenizer.chat_template)
        except TemplateError as error:
            raise ModelFileError(f"the model's chat template is broken: {error}") from error
        self._default_system = self._find_default_system()

    def render(self, messages: Sequence[Message], *, has_generation_prompt: bool = True) -> str:
        """Raises InvalidRequest naming `messages` when the template refuses them."""
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=has_generation_prompt,
                **self._tokenizer.template_variables,
            )
        except TemplateError as error:
            raise InvalidRequest("messages", f"chat template: {error.message}") from error
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidRequest("messages", f"chat template cannot use them: {error}") from error

    def prompt(self, messages: Sequence[Message]) -> ChatPrompt:
        """The whole prompt; its tokens are those of the rendered text, whatever the spans are."""
        text = self.render(messages)
        boundaries = self._boundaries(text, messages)
        token_ids, counts = self._tokenizer.encode_with_counts(text, boundaries or ())
        if boundaries is None:
            return ChatPrompt(text, token_ids, Spans(0, 0, len(token_ids), is_exact=False))
        system_end, history_end = counts
        return ChatPrompt(text, token_ids, Spans(system_end, history_end, len(token_ids)))

    def _boundaries(self, text: str, messages: Sequence[Message]) -> tuple[int, int] | None:
        """Characters of `text` that are system and that are system and history; None: unknown."""
        num_system = _num_leading_system(messages)
        turn_start = max(_last_user_index(messages), num_system)
        system = self._system_text(text, messages[:num_system])
        history = system
        if turn_start > num_system:
            history = self._prefix(messages[:turn_start])
        if system is None or history is None:
            return None
        if not text.startswith(history) or not history.startswith(system):
            return None
        return len(system), len(history)

    def _system_text(self, text: str, system: Sequence[Message]) -> str | None:
        if system:
            return self._prefix(system)
        if not text.startswith(self._default_system):
            return self._find_default_system()
        return self._default_system

    def _prefix(self, messages: Sequence[Message]) -> str | None:
        try:
            return self.render(messages, has_generation_prompt=False)
        except InvalidRequest:
            return None

    def _find_default_system(self) -> str:
        """What the template puts before a chat without a system message.

        The text of a user turn is what the last message of the probe adds; the default is what
        the first turn has before it.
        """
        first, reply, all_three = (self._prefix(_PROBE[:count]) for count in (1, 2, 3))
        if first is None or reply is None or all_three is None:
            return ""
        turn = all_three[len(reply) :]
        is_regular = all_three.startswith(reply) and turn and first.endswith(turn)
        return first[: -len(turn)] if is_regular else ""


def _num_leading_system(messages: Sequence[Message]) -> int:
    for index, message in enumerate(messages):
        if message.get("role") not in SYSTEM_ROLES:
            return index
    return len(messages)


def _last_user_index(messages: Sequence[Message]) -> int:
    """The last message if no user speaks."""
    users = (i for i in range(len(messages) - 1, -1, -1) if messages[i].get("role") == "user")
    return next(users, len(messages) - 1)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(value: Any, indent: int | None = None) -> str:
    """Plain JSON: jinja2's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
