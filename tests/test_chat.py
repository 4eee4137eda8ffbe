from __future__ import annotations

from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from controllers.errors import InvalidRequest, ModelFileError
from serve_app.chat import Chat, Spans
from serve_app.tokenizer import ByteTokenizer

DEFAULT = "<|im_start|>system\nBe helpful<|im_end|>\n"
SMOLLM = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '" + DEFAULT.replace("\n", "\\n") + "' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
ALTERNATING = (
    "{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ '[' + m['role'] + ']' + m['content'] }}{% endfor %}"
)
ALWAYS_PROMPTS = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
)


def chat_with(template: str | None) -> Chat:
    tokenizer = ByteTokenizer()
    tokenizer.chat_template = template
    return Chat(tokenizer)


def message(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def turn(role: str, content: str) -> str:
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


SYSTEM, USER, REPLY, NEXT = (
    message("system", "be brief"),
    message("user", "hé"),
    message("assistant", "yes?"),
    message("user", "go on"),
)
OPEN = "<|im_start|>assistant\n"


def parts(chat: Chat, messages: list[dict[str, Any]]) -> tuple[str, str, str]:
    """Texts of the three spans; their tokens must be those of the whole prompt."""
    prompt = chat.prompt(messages)
    tokenizer = ByteTokenizer()
    assert prompt.text == chat.render(messages)
    assert prompt.token_ids == tokenizer.encode(prompt.text)
    spans = prompt.spans
    assert (spans.is_exact, spans.num_tokens) == (True, len(prompt.token_ids))
    system = prompt.token_ids[: spans.system_end]
    history = prompt.token_ids[spans.system_end : spans.history_end]
    current = prompt.token_ids[spans.history_end :]
    decode = tokenizer.decode
    return tuple(decode(ids, skip_special=False) for ids in (system, history, current))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([USER], (DEFAULT, "", turn("user", "hé") + OPEN)),
        ([SYSTEM, USER], (turn("system", "be brief"), "", turn("user", "hé") + OPEN)),
        (
            [USER, REPLY, NEXT],
            (
                DEFAULT,
                turn("user", "hé") + turn("assistant", "yes?"),
                turn("user", "go on") + OPEN,
            ),
        ),
        (
            [SYSTEM, USER, REPLY, NEXT],
            (
                turn("system", "be brief"),
                turn("user", "hé") + turn("assistant", "yes?"),
                turn("user", "go on") + OPEN,
            ),
        ),
        ([SYSTEM], (turn("system", "be brief"), "", OPEN)),
        (
            [USER, message("tool", "42")],
            (DEFAULT, "", turn("user", "hé") + turn("tool", "42") + OPEN),
        ),
        (
            [message("assistant", "hi"), USER],
            (DEFAULT, turn("assistant", "hi"), turn("user", "hé") + OPEN),
        ),
    ],
)
def test_spans_of_a_template_with_a_default_system_prompt(
    messages: list[dict[str, Any]], expected: tuple[str, str, str]
) -> None:
    assert parts(chat_with(SMOLLM), messages) == expected


def test_spans_of_the_built_in_template() -> None:
    chat = Chat(ByteTokenizer())
    assert parts(chat, [USER]) == ("", "", turn("user", "hé") + OPEN)
    system, history, current = parts(chat, [SYSTEM, USER, REPLY, NEXT])
    assert system == turn("system", "be brief")
    assert history == turn("user", "hé") + turn("assistant", "yes?")
    assert current == turn("user", "go on") + OPEN


def test_a_template_that_insists_on_alternation_has_spans() -> None:
    chat = chat_with(ALTERNATING)
    assert parts(chat, [USER, REPLY, NEXT]) == ("", "[user]hé[assistant]yes?", "[user]go on")


def test_a_template_that_is_not_prefix_stable_counts_all_as_current() -> None:
    prompt = chat_with(ALWAYS_PROMPTS).prompt([USER, REPLY, NEXT])
    num_tokens = len(ByteTokenizer().encode(prompt.text))
    assert prompt.spans == Spans(0, 0, num_tokens, is_exact=False)


def test_a_dated_default_system_prompt_is_found_when_the_date_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    years = iter([2025, 2025, 2025])
    clock = SimpleNamespace(now=lambda: datetime(next(years, 2026), 1, 1))
    monkeypatch.setattr("serve_app.chat.datetime", clock)
    chat = chat_with(SMOLLM.replace("Be helpful", "' + strftime_now('%Y') + '"))
    system, _, current = parts(chat, [USER])
    assert system == turn("system", "2026")
    assert current == turn("user", "hé") + OPEN


def test_helpers_of_the_template_language() -> None:
    chat = chat_with("{{ messages[0] | tojson }} {{ strftime_now('%%') }} {{ eos_token }}")
    assert chat.render([message("user", "<é>")]) == (
        '{"role": "user", "content": "<é>"} % <|im_end|>'
    )


@pytest.mark.parametrize(
    ("template", "messages", "reason"),
    [
        (ALTERNATING, [REPLY], "chat template: roles must alternate"),
        (SMOLLM, [message("user", None)], "chat template cannot use them: can only concatenate"),
        (SMOLLM, [{"role": "user"}], "chat template: 'dict object' has no attribute 'content'"),
        ("{{ messages.__class__.__mro__ }}", [USER], "chat template: access to attribute"),
    ],
)
def test_messages_the_template_refuses(
    template: str, messages: list[dict[str, Any]], reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        chat_with(template).prompt(messages)
    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    ("template", "reason"),
    [(None, "has no chat template"), ("{% for %}", "chat template is broken")],
)
def test_a_model_without_a_usable_template(template: str | None, reason: str) -> None:
    with pytest.raises(ModelFileError, match=reason):
        chat_with(template)
