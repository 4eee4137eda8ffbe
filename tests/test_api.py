"""The HTTP edge: bad bodies, reads, readiness, explaining, settings, the description."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from controllers.errors import (
    NotReady,
)
from serve_app.engine.build import EngineLimits
from serve_app.executors.base import ExecutorInfo
from serve_app.executors.scripted import ScriptedExecutor
from serve_app.local_fleet import LocalFleet
from tests.edge_fixtures import (
    CHAT,
    COMPLETION,
    MAX_SEQ_LEN,
    MODEL,
    PlannedExecutor,
    RawClient,
    TestEdge,
    error_of,
    events_of,
    texts_of,
)


async def test_the_type_of_a_request_by_header() -> None:
    edge = TestEdge()
    body = {"prompt": "Hi"}
    assert (await edge.post(COMPLETION, body, **{"x-request-type": "batch"})).status_code == 200
    assert edge.executor.requests[0].tier == "batch"
    response = await edge.post(COMPLETION, body, **{"x-request-type": "nope"})
    assert error_of(response) == (400, "request_type", None)


BAD_CHATS: dict[str, tuple[dict[str, Any], str]] = {
    "empty messages": ({"messages": []}, "messages"),
    "max_tokens 0": ({"max_tokens": 0}, "max_tokens"),
    "max_tokens '5'": ({"max_tokens": "5"}, "max_tokens"),
    "negative temperature": ({"temperature": -1}, "temperature"),
    "unknown type": ({"request_type": "nope"}, "request_type"),
    "bad retention": ({"retention": [{"start": 0, "retention_priority": 101}]},
                      "retention[0].retention_priority"),
    "image": ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
              "messages[0].content[0].type"),
    "empty parts": ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    "logit_bias beyond": ({"logit_bias": {"191222": -100}}, "logit_bias"),
    "logit_bias word": ({"logit_bias": {"AI": -100}}, "logit_bias"),
    "logit_bias negative": ({"logit_bias": {"-1": 5}}, "logit_bias"),
    "logit_bias value": ({"logit_bias": {"5": 1000}}, "logit_bias.5"),
}  # fmt: skip

BAD_COMPLETIONS: dict[str, tuple[dict[str, Any], str]] = {
    "empty": ({"prompt": ""}, "prompt"),
    "empty in list": ({"prompt": [""]}, "prompt[0]"),
    "empty list": ({"prompt": []}, "prompt"),
    "mixed": ({"prompt": ["a", 1]}, "prompt[1]"),
    "beyond the vocabulary": ({"prompt": [1, 259]}, "prompt[1]"),
    "negative id": ({"prompt": [-1]}, "prompt[0]"),
    "too long": ({"prompt": "x" * MAX_SEQ_LEN}, "prompt"),
    "echo": ({"echo": True, "logprobs": 1, "max_tokens": 0}, "max_tokens"),
    "echo alone": ({"echo": True}, "echo"),
    "max_tokens -1": ({"max_tokens": -1}, "max_tokens"),
    "max_tokens 5.5": ({"max_tokens": 5.5}, "max_tokens"),
    "both": ({"messages": [{"role": "user", "content": "Hi"}]}, "messages"),
    "neither": ({"prompt": None}, "prompt"),
    "five stops": ({"stop": list("abcde")}, "stop"),
}


@pytest.mark.parametrize("case", sorted(BAD_CHATS))
async def test_a_bad_chat_is_refused_and_hurts_nobody(case: str) -> None:
    fields, param = BAD_CHATS[case]
    edge = TestEdge()
    good, bad = await asyncio.gather(edge.chat(), edge.chat(**fields))
    assert error_of(bad)[:2] == (400, param)
    assert (await edge.chat()).json()["choices"] == good.json()["choices"]
    assert len(edge.executor.requests) == 2


@pytest.mark.parametrize("case", sorted(BAD_COMPLETIONS))
async def test_a_bad_completion_is_refused_and_hurts_nobody(case: str) -> None:
    fields, param = BAD_COMPLETIONS[case]
    edge = TestEdge()
    good, bad = await asyncio.gather(edge.completion(), edge.completion(**fields))
    assert error_of(bad)[:2] == (400, param)
    assert (await edge.completion()).json()["choices"] == good.json()["choices"]
    assert len(edge.executor.requests) == 2


async def test_an_empty_message_is_fine_where_the_template_makes_tokens_of_it() -> None:
    response = await TestEdge().chat(messages=[{"role": "user", "content": ""}])
    assert response.status_code == 200
    assert response.json()["usage"]["prompt_tokens"] == 19


@pytest.mark.parametrize("max_tokens", [10 * MAX_SEQ_LEN, 2**31, MAX_SEQ_LEN - 1])
async def test_a_maximum_over_the_limit_is_capped(max_tokens: int) -> None:
    answer = (await TestEdge().completion(max_tokens=max_tokens)).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == MAX_SEQ_LEN - 2


async def test_what_openai_accepts_is_accepted() -> None:
    edge = TestEdge()
    fields = {
        "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "user": "u",
        "parallel_tool_calls": None, "invented": 1, "logit_bias": {}, "stop": None, "seed": None,
    }  # fmt: skip
    messages = [{"role": "user", "content": "Hi", "name": "n", "id": 5, "opts": {}}]
    plain, full = await edge.chat(), await edge.chat(messages=messages, **fields)
    assert full.json()["choices"] == plain.json()["choices"]


@pytest.mark.parametrize("path", [CHAT, COMPLETION, "/fleet/route"])
@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"", "application/json"), (b"{", "application/json"), (b"[]", "application/json"),
     (b"null", "application/json"), (b"\xff\xfe", "application/json"),
     (b'{"prompt":"a"}', "text/plain"), (b"a=b", "application/x-www-form-urlencoded")],
)  # fmt: skip
async def test_a_body_that_is_no_json_object(path: str, body: bytes, kind: str) -> None:
    response = await TestEdge().post(path, body, **{"content-type": kind})
    assert error_of(response) == (400, None, None)


async def test_a_body_that_is_too_large() -> None:
    edge = TestEdge(settings={"http": {"max_body_bytes": 1000}})
    large = json.dumps({"prompt": "x" * 1000}).encode()
    assert error_of(await edge.post(COMPLETION, large)) == (413, None, "body_too_large")
    client = RawClient(edge.app, COMPLETION, {"prompt": "x" * 1000})
    await client.task
    assert client.sent[0]["status"] == 413
    assert (await edge.completion()).status_code == 200


async def test_a_compressed_body_is_refused() -> None:
    response = await TestEdge().post(COMPLETION, b"x", **{"content-encoding": "gzip"})
    assert error_of(response) == (400, None, None)


async def test_unknown_paths_methods_and_models() -> None:
    edge = TestEdge()
    async with edge.client() as client:
        assert error_of(await client.get("/nope")) == (404, None, "http_404")
        assert error_of(await client.get(CHAT)) == (405, None, "http_405")
        assert error_of(await client.post("/health")) == (405, None, "http_405")
        assert error_of(await client.get("/v1/models/a/b")) == (404, "model", "model_not_found")
    assert error_of(await edge.chat(model="gpt-4")) == (404, "model", "model_not_found")
    assert error_of(await edge.completion(model="")) == (404, "model", "model_not_found")


class Unready(LocalFleet):
    def info(self) -> ExecutorInfo:
        raise NotReady("no worker has said what it is", 5)

    def readiness(self) -> str | None:
        return "no worker is up"


async def test_a_fleet_that_is_not_ready() -> None:
    edge = TestEdge(fleet=Unready(PlannedExecutor()))
    async with edge.client() as client:
        health, ready = await client.get("/health"), await client.get("/ready")
        assert (health.status_code, health.json()) == (200, {"status": "ok"})
        assert (ready.status_code, ready.headers["retry-after"]) == (503, "1")
        assert ready.json() == {"status": "not ready", "reason": "no worker is up"}
        assert error_of(await client.get("/v1/models")) == (503, None, "not_ready")
    response = await edge.chat()
    assert error_of(response) == (503, None, "not_ready")
    assert response.headers["retry-after"] == "5"


async def test_what_can_be_read() -> None:
    edge = TestEdge()
    async with edge.client() as client:
        (card,) = (await client.get("/v1/models")).json()["data"]
        assert card.pop("created") > 0
        assert card == {
            "id": MODEL, "object": "model", "owned_by": "cachelane", "max_model_len": MAX_SEQ_LEN,
            "parent": None,
        }  # fmt: skip
        assert (await client.get(f"/v1/models/{MODEL}")).json()["id"] == MODEL
        assert (await client.get("/ready")).json() == {"status": "ready"}
        assert (await client.get("/fleet")).json() == edge.fleet.describe()


async def test_a_failing_read_is_told_in_the_same_shape() -> None:
    class Broken(LocalFleet):
        def describe(self) -> dict[str, Any]:
            raise RuntimeError("secret")

    async with TestEdge(fleet=Broken(PlannedExecutor())).client() as client:
        response = await client.get("/fleet")
    assert error_of(response) == (500, None, "internal_error")
    assert "secret" not in response.text


async def test_a_route_is_explained_without_running() -> None:
    edge = TestEdge()
    await edge.completion(prompt="x" * 20)
    both = await edge.post("/fleet/route", {"prompt": ["x" * 20, "y"]})
    assert [d["reason"] for d in both.json()["data"]] == ["overlap", "cold"]
    chat = await edge.post("/fleet/route", {"messages": [{"role": "user", "content": "Hi"}]})
    assert chat.json()["data"][0]["num_prompt_tokens"] == 21
    assert error_of(await edge.post("/fleet/route", {}))[:2] == (400, "prompt")
    assert len(edge.executor.requests) == 1


async def test_a_long_prompt_is_prepared_beside_the_loop() -> None:
    edge = TestEdge()
    threads: list[bool] = []
    encode = edge.tokenizer.encode

    def watched(text: str, *, parse_special: bool = True) -> list[int]:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            threads.append(True)
        else:
            threads.append(False)
        return encode(text, parse_special=parse_special)

    edge.tokenizer.encode = watched  # type: ignore[method-assign]
    assert (await edge.completion(prompt="a")).status_code == 200
    assert error_of(await edge.completion(prompt="x" * 5000))[0] == 400
    assert threads == [False, True]


async def test_new_settings_take_effect_at_once() -> None:
    edge = TestEdge()
    assert (await edge.chat()).status_code == 200
    keyed = {"tenants": {"default": {"api_keys": ["k"]}}}
    edge.app.state.configure(TestEdge(settings=keyed).settings)
    response = await edge.chat()
    assert error_of(response) == (401, None, "invalid_api_key")
    assert response.headers["www-authenticate"] == "Bearer"
    body = {"prompt": "Hi"}
    assert (await edge.post(COMPLETION, body, authorization="Bearer k")).status_code == 200


async def test_the_description_of_the_api_is_whole() -> None:
    async with TestEdge().client() as client:
        document = (await client.get("/openapi.json")).json()
        assert (await client.get("/docs")).status_code == 200
    assert sorted(document["paths"]) == [
        "/fleet", "/fleet/route", "/health", "/ready", "/v1/chat/completions", "/v1/completions",
        "/v1/models", "/v1/models/{model}",
    ]  # fmt: skip
    schemas = document["components"]["schemas"]
    refs = {part.split('"')[0] for part in json.dumps(document).split("#/components/schemas/")[1:]}
    assert refs <= schemas.keys()
    assert {"messages", "request_type", "retention", "cache_salt"} <= (
        schemas["ChatBody"]["properties"].keys()
    )


async def test_the_scripted_executor_behind_the_edge() -> None:
    limits = EngineLimits(block_size=8, num_gpu_blocks=64)
    executor = ScriptedExecutor(limits)
    edge = TestEdge(executor)
    first = await edge.chat(max_tokens=6)
    again = await edge.chat(max_tokens=6, stream=True, stream_options={"include_usage": True})
    assert texts_of(events_of(again)) == {0: first.json()["choices"][0]["message"]["content"]}
    assert again.headers["x-cachelane-reason"] == "overlap"
    assert again.headers["x-cachelane-predicted-cached-tokens"] == "16"
    cached = events_of(again)[-2]["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= 16
    stopped = await edge.chat(max_tokens=300, n=2, logprobs=True, top_logprobs=2)
    assert len(stopped.json()["choices"]) == 2
    assert executor.load().num_active == 0
    executor.close()
