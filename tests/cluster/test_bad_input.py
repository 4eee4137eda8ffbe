"""Bad requests over the whole path: the right status, OpenAI's shape, the next one runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.fleet import Fleet

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "Hi"}]


def completion(**fields: Any) -> tuple[str, Any]:
    return COMPLETIONS, {"prompt": "Hi", "max_tokens": 2, **fields}


def chat(**fields: Any) -> tuple[str, Any]:
    return CHAT, {"messages": HI, "max_tokens": 2, **fields}


def kept(start: Any, end: Any, value: Any, duration_s: Any = None) -> list[dict[str, Any]]:
    return [{"start": start, "end": end, "retention_priority": value, "duration_s": duration_s}]


# request, status, the field it names, code
CASES = [
    (chat(messages=[]), 400, "messages", None),
    (chat(messages="Hi"), 400, "messages", None),
    (chat(messages=[{"role": "wizard", "content": "Hi"}]), 400, "messages[0].role", None),
    (chat(model="gpt-4"), 404, "model", "model_not_found"),
    (chat(max_tokens=0), 400, "max_tokens", None),
    (chat(request_type="vip"), 400, "request_type", None),
    (chat(temperature=-0.1), 400, "temperature", None),
    (completion(prompt=""), 400, "prompt", None),
    (completion(prompt=[]), 400, "prompt", None),
    (completion(prompt=[1, -1]), 400, "prompt[1]", None),
    (completion(prompt=[1, 10**6]), 400, "prompt[1]", None),
    (completion(prompt="x" * 9000), 400, "prompt", "context_length_exceeded"),
    (completion(n=-1), 400, "n", None),
    (completion(top_p=1.5), 400, "top_p", None),
    (completion(logit_bias={"AI": 1}), 400, "logit_bias", None),
    (completion(retention=kept(0, 1, 101)), 400, "retention[0].retention_priority", None),
    (completion(retention=kept(1, 1, 50)), 400, "retention[0].end", None),
    (completion(retention=kept(0, None, 50, -1)), 400, "retention[0].duration_s", None),
    ((COMPLETIONS, b"{"), 400, None, None),
    ((COMPLETIONS, b"\xff\xfe"), 400, None, None),
    ((COMPLETIONS, b'{"prompt": "Hi", "max_tokens": 1e999}'), 400, "max_tokens", None),
    (("/v1/embeddings", {"input": "Hi"}), 404, None, "http_404"),
    (("/fleet/route", {"messages": []}), 400, "messages", None),
]


@pytest.mark.parametrize(("request_", "status", "field", "code"), CASES)
def test_a_bad_request_is_named_and_the_next_one_runs(
    fleet: Fleet, request_: tuple[str, Any], status: int, field: str | None, code: str | None
) -> None:
    path, body = request_
    kind = {"content-type": "application/json"}
    given = {"content": body, "headers": kind} if isinstance(body, bytes) else {"json": body}
    answer = fleet.http.post(path, **given)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (status, field, code), error
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert "Traceback" not in error["message"]
    path, body = completion()
    assert fleet.http.post(path, json=body).status_code == 200


def test_a_body_beyond_the_bound_is_refused(fleet: Fleet) -> None:
    too_long = fleet.settings.http.max_body_bytes + 1
    answer = fleet.http.post(COMPLETIONS, json={"prompt": "x" * too_long})
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_large"


def test_a_wrong_method_is_refused(fleet: Fleet) -> None:
    answer = fleet.http.get(CHAT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "http_405")
