"""Bodies: strict types, ranges, paths of faults, fields that are refused or ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controllers.errors import InvalidRequest
from serve_app.protocol import ChatBody, CompletionBody, parse, path_of, shown
from serve_app.protocol_checks import (
    check_chat,
    check_completion,
    plain_message,
    prompts_of,
    stop_strings,
)

USER = {"role": "user", "content": "Hi"}


def chat(**fields: Any) -> ChatBody:
    body = parse(ChatBody, json.dumps({"messages": [USER], **fields}).encode())
    check_chat(body)
    return body


def completion(**fields: Any) -> CompletionBody:
    body = parse(CompletionBody, json.dumps({"prompt": "Hi", **fields}).encode())
    check_completion(body)
    return body


def fault(call: Any, *args: Any, **fields: Any) -> tuple[str, str]:
    with pytest.raises(InvalidRequest) as caught:
        call(*args, **fields)
    return caught.value.field, caught.value.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", "5"), ("max_tokens", 5.5), ("max_tokens", True), ("max_tokens", 0),
        ("max_tokens", -1), ("max_tokens", [1]), ("max_tokens", 1e9),
        ("max_completion_tokens", 0), ("max_completion_tokens", "5"),
        ("temperature", -0.1), ("temperature", 2.1), ("temperature", "1"), ("temperature", True),
        ("top_p", -0.1), ("top_p", 1.1), ("top_k", -2), ("top_k", 1.5), ("min_p", 1.5),
        ("n", 0), ("n", 129), ("n", "2"), ("seed", 2**63), ("seed", 1.5),
        ("presence_penalty", 2.1), ("frequency_penalty", -2.1), ("min_tokens", -1),
        ("stream", "true"), ("stream", 1), ("ignore_eos", 1), ("stop_token_ids", 5),
        ("model", 7), ("request_type", 7), ("cache_salt", ""), ("cache_salt", "x" * 257),
        ("logprobs", 3), ("top_logprobs", 21), ("top_logprobs", True),
        ("stream_options", True), ("logit_bias", [1]), ("messages", []), ("messages", "Hi"),
        ("messages", None),
    ],
)  # fmt: skip
def test_a_wrong_type_or_value_names_its_field(field: str, value: Any) -> None:
    path, message = fault(chat, **{field: value})
    assert path == field
    assert "got" in message


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"stop_token_ids": [1, "a"]}, "stop_token_ids[1]"),
        ({"stream": True, "stream_options": {"include_usage": "yes"}},
         "stream_options.include_usage"),
        ({"logit_bias": {"5": 1000}}, "logit_bias.5"),
        ({"logit_bias": {"5": -101}}, "logit_bias.5"),
        ({"logit_bias": {"5": "x"}}, "logit_bias.5"),
        ({"messages": [USER, 5]}, "messages[1]"),
        ({"messages": [USER, {"role": 5, "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"prompt": "Hi"}, "prompt"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": False, "stream_options": {}}, "stream_options"),
        ({"best_of": 2}, "best_of"),
    ],
)  # fmt: skip
def test_the_path_of_a_fault_in_a_chat(fields: dict[str, Any], path: str) -> None:
    assert fault(chat, **fields)[0] == path


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is empty, it must be a JSON object"),
        (b" \n", "the body is empty, it must be a JSON object"),
        (b"[]", "the body must be a JSON object, got []"),
        (b"5", "the body must be a JSON object, got 5"),
        (b'{"a":', "the body is not JSON: EOF while parsing a value at line 1 column 5"),
        (b"\xff", "the body is not JSON: expected value at line 1 column 1"),
        (b'{"a":"\\ud800"}', "the body is not JSON: unexpected end of hex escape "
                              "at line 1 column 13"),
        (b'{"a":' + b"[" * 500 + b"]" * 500 + b"}", "the body is not JSON: recursion limit "
                                                     "exceeded at line 1 column 206"),
    ],
)  # fmt: skip
def test_a_body_that_is_no_object(body: bytes, message: str) -> None:
    assert fault(parse, ChatBody, body) == ("", message)


def test_a_missing_field_is_said_to_be_missing() -> None:
    assert fault(parse, ChatBody, b"{}") == ("messages", "required, but absent")
    assert fault(completion, prompt=None) == ("prompt", "required, but absent")


def test_null_is_the_same_as_absent() -> None:
    nullable = sorted(ChatBody.model_fields.keys() - {"messages"})
    with_nulls = chat(**dict.fromkeys(nullable))
    assert with_nulls == chat()
    assert completion(**dict.fromkeys(CompletionBody.model_fields.keys() - {"prompt"})) == (
        completion()
    )


HARMLESS: dict[str, Any] = {
    "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "user": "u",
    "parallel_tool_calls": None, "invented": {"x": [1]}, "tools": [], "tool_choice": "none",
    "functions": None, "response_format": {"type": "text"}, "modalities": ["text"],
    "audio": None, "echo": False, "suffix": "", "repetition_penalty": 1.0,
    "prompt_cache_key": "k", "safety_identifier": "s", "reasoning_effort": "low",
    "chat_template_kwargs": {}, "add_generation_prompt": True, "prediction": None,
}  # fmt: skip


@pytest.mark.parametrize("field", sorted(HARMLESS))
def test_a_field_that_changes_nothing_is_accepted(field: str) -> None:
    assert chat(**{field: HARMLESS[field]}).messages == chat().messages
    assert completion(**{field: HARMLESS[field]}).prompt == "Hi"


REFUSED: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required",
    "functions": [{"name": "f"}], "response_format": {"type": "json_object"},
    "modalities": ["text", "audio"], "audio": {"voice": "x"}, "echo": True, "suffix": "end",
    "web_search_options": {}, "repetition_penalty": 1.1, "guided_json": {}, "use_beam_search": True,
    "continue_final_message": True, "add_generation_prompt": False, "chat_template": "{{ x }}",
    "chat_template_kwargs": {"enable_thinking": False}, "prompt_logprobs": 1, "bad_words": ["x"],
    "structured_outputs": {"choice": ["a"]}, "truncate_prompt_tokens": 5, "allowed_token_ids": [1],
}  # fmt: skip


@pytest.mark.parametrize("field", sorted(REFUSED))
def test_a_field_that_would_change_the_answer_is_refused(field: str) -> None:
    for call in (chat, completion):
        path, message = fault(call, **{field: REFUSED[field]})
        assert path == field
        assert message.startswith("is not supported here, got ")


@pytest.mark.parametrize(("best_of", "n"), [(1, None), (2, 2), (None, 3)])
def test_best_of_is_fine_when_it_chooses_nothing(best_of: int | None, n: int | None) -> None:
    assert completion(best_of=best_of, n=n).n == n


@pytest.mark.parametrize("best_of", [2, 0, "1", True, 1.0])
def test_best_of_that_would_choose_is_refused(best_of: Any) -> None:
    assert fault(completion, best_of=best_of)[0] == "best_of"


def test_a_body_of_the_other_endpoint_is_refused() -> None:
    assert fault(completion, messages=[USER])[0] == "messages"
    assert fault(chat, prompt="Hi")[0] == "prompt"


def message(content: Any, role: str = "user", **fields: Any) -> dict[str, str]:
    given = {"messages": [{"role": role, "content": content, **fields}]}
    return plain_message(parse(ChatBody, json.dumps(given).encode()).messages[0], 3)


def test_all_text_parts_of_a_message_count() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two", "x": 1}]
    assert message(parts) == {"role": "user", "content": "one\ntwo"}
    assert message(parts[:1], "system") == {"role": "system", "content": "one"}
    assert message("", "assistant") == {"role": "assistant", "content": ""}
    assert message("x", "developer") == {"role": "system", "content": "x"}


def test_unknown_fields_of_a_message_are_ignored() -> None:
    ignored = {"name": "n", "id": 7, "opts": {}, "tool_calls": [], "function_call": None}
    assert message("x", **ignored) == {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ([], "messages[3].content"),
        (None, "messages[3].content"),
        (5, "messages[3].content"),
        ({"type": "text"}, "messages[3].content"),
        (["x"], "messages[3].content[0]"),
        ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}],
         "messages[3].content[1].type"),
        ([{"type": "video"}], "messages[3].content[0].type"),
        ([{"text": "x"}], "messages[3].content[0].type"),
        ([{"type": ["text"], "text": "x"}], "messages[3].content[0].type"),
        ([{"type": "text"}], "messages[3].content[0].text"),
        ([{"type": "text", "text": 5}], "messages[3].content[0].text"),
    ],
)  # fmt: skip
def test_content_that_is_no_text_names_the_part(content: Any, path: str) -> None:
    assert fault(message, content)[0] == path


@pytest.mark.parametrize("role", ["tool", "function", "", "User"])
def test_an_unknown_role_is_refused(role: str) -> None:
    assert fault(message, "x", role)[0] == "messages[3].role"


def test_tool_calls_of_a_message_are_refused() -> None:
    path, _ = fault(message, "x", "assistant", tool_calls=[{"id": "1"}])
    assert path == "messages[3].tool_calls"


def test_stop_strings() -> None:
    assert stop_strings(None) == stop_strings([]) == ()
    assert stop_strings("end") == ("end",)
    assert stop_strings(["a", "b", "a"]) == ("a", "b")


@pytest.mark.parametrize(
    ("stop", "path"),
    [("", "stop"), ([""], "stop[0]"), (["a", 5], "stop[1]"), (5, "stop"), ({"a": 1}, "stop"),
     (list("abcde"), "stop"), (True, "stop"), (["a", None], "stop[1]")],
)  # fmt: skip
def test_bad_stop_strings(stop: Any, path: str) -> None:
    assert fault(stop_strings, stop)[0] == path


def test_every_form_of_prompt() -> None:
    assert prompts_of("a") == ["a"]
    assert prompts_of(["a", "b"]) == ["a", "b"]
    assert prompts_of([1, 2, 3]) == [[1, 2, 3]]
    assert prompts_of([[1, 2], [3, 4]]) == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("prompt", "path"),
    [
        ("", "prompt"), ([], "prompt"), ([""], "prompt[0]"), (["a", ""], "prompt[1]"),
        ([[]], "prompt[0]"), ([[1], []], "prompt[1]"), (["a", 1], "prompt[1]"),
        ([1, "a"], "prompt[1]"), ([1, True], "prompt[1]"), ([True], "prompt[0]"),
        ([[1], "a"], "prompt[1]"), ([[1, "a"]], "prompt[0][1]"), ([1.5], "prompt[0]"),
        ([[1], [2.0]], "prompt[1][0]"), (5, "prompt"), ({"a": 1}, "prompt"), ([None], "prompt[0]"),
        (["a", ["b"]], "prompt[1]"),
    ],
)  # fmt: skip
def test_bad_prompts(prompt: Any, path: str) -> None:
    assert fault(prompts_of, prompt)[0] == path


def test_values_in_messages_are_cut() -> None:
    assert shown("x" * 100) == "'" + "x" * 27 + "..." + "x" * 28 + "'"
    assert len(shown([["x" * 100] * 100] * 100)) == 60
    assert len(shown(10**4000)) == 60
    assert shown(5) == "5"
    assert path_of(("a", 0, "b")) == "a[0].b"
