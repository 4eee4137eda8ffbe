"""Answers: shapes of chats and completions, streams, usage, log probabilities, headers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from serve_app.api import build_api
from serve_app.chat import Chat
from serve_app.executors.base import TokenChunk
from serve_app.fleet import Ask, Route
from serve_app.local_fleet import LocalFleet
from tests.edge_fixtures import (
    COMPLETION,
    MODEL,
    PlannedExecutor,
    TestEdge,
    error_of,
    events_of,
    texts_of,
)


def without_identity(value: dict[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key not in {"id", "created"}}


async def test_a_chat_in_one_piece() -> None:
    response = await TestEdge().chat(max_tokens=5)
    assert response.status_code == 200
    assert without_identity(response.json()) == {
        "object": "chat.completion",
        "model": MODEL,
        "system_fingerprint": None,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Stra\ufffd", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": 21,
            "completion_tokens": 5,
            "total_tokens": 26,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_a_streamed_chat() -> None:
    response = await TestEdge().chat(max_tokens=2, stream=True)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = events_of(response)
    assert events.pop() == "[DONE]"
    head = {"object": "chat.completion.chunk", "model": MODEL, "system_fingerprint": None}
    assert [{k: v for k, v in event.items() if k in head} for event in events] == [head] * 4
    assert len({(event["id"], event["created"]) for event in events}) == 1
    assert [event["choices"] for event in events] == [
        [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
        for delta, reason in (
            ({"role": "assistant", "content": "", "refusal": None}, None),
            ({"content": "S"}, None),
            ({"content": "t"}, None),
            ({}, "length"),
        )
    ]


async def test_a_completion_in_one_piece_and_streamed() -> None:
    edge = TestEdge()
    whole = await edge.completion(max_tokens=4)
    assert without_identity(whole.json()) == {
        "object": "text_completion",
        "model": MODEL,
        "system_fingerprint": None,
        "choices": [{"index": 0, "text": "Stra", "logprobs": None, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 4,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }
    events = events_of(await edge.completion(max_tokens=2, stream=True))
    assert [event["choices"][0] for event in events[:-1]] == [
        {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        for text, reason in (("S", None), ("t", None), ("", "length"))
    ]


@pytest.mark.parametrize("chunk_size", [1, 3, 7])
@pytest.mark.parametrize("stop", [None, ["fox", "京, n"]])
async def test_joined_deltas_equal_the_answer_in_one_piece(
    chunk_size: int, stop: list[str] | None
) -> None:
    edge = TestEdge(PlannedExecutor(chunk_size=chunk_size))
    fields = {"max_tokens": 16, "temperature": 0, "n": 2, "stop": stop}
    streams = [edge.completion(**fields, stream=True) for _ in range(20)]
    whole = (await edge.completion(**fields)).json()["choices"]
    for response in await asyncio.gather(*streams):
        assert texts_of(events_of(response)) == {c["index"]: c["text"] for c in whole}


async def test_usage_in_a_stream_only_when_asked_for() -> None:
    edge = TestEdge()
    usage = (await edge.chat()).json()["usage"]
    for options in (None, {}, {"include_usage": False}, {"include_usage": None}):
        events = events_of(await edge.chat(stream=True, stream_options=options))
        assert all("usage" not in event for event in events[:-1])
        assert all(len(event["choices"]) == 1 for event in events[:-1])
    events = events_of(await edge.chat(stream=True, stream_options={"include_usage": True}))
    assert events[-1] == "[DONE]"
    assert [event["usage"] for event in events[:-2]] == [None] * (len(events) - 2)
    assert events[-2]["choices"] == []
    details = {"prompt_tokens_details": {"cached_tokens": 16}}
    assert events[-2]["usage"] == {**usage, **details}


async def test_stream_options_without_a_stream() -> None:
    response = await TestEdge().chat(stream_options={"include_usage": True})
    assert error_of(response) == (400, "stream_options", None)


async def test_several_choices_in_a_stream() -> None:
    edge = TestEdge()
    fields = {"n": 3, "max_tokens": 8, "logprobs": True, "stream": True}
    events = events_of(await edge.chat(**fields, stream_options={"include_usage": True}))
    choices = [choice for event in events[:-1] for choice in event["choices"]]
    for index in range(3):
        own = [choice for choice in choices if choice["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == ["length"]
        entries = [e for c in own if c["logprobs"] for e in c["logprobs"]["content"]]
        assert len(entries) == 8
    assert events[-2]["usage"]["completion_tokens"] == 24
    assert events[-2]["usage"]["prompt_tokens"] == 21


async def test_several_choices_of_several_prompts() -> None:
    edge = TestEdge()
    fields = {"n": 2, "prompt": ["a", "bc"], "max_tokens": 3}
    answer = (await edge.completion(**fields)).json()
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [
        (0, "Str"), (1, "tra"), (2, "Str"), (3, "tra"),
    ]  # fmt: skip
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 12
    events = events_of(await edge.completion(**fields, stream=True))
    assert texts_of(events) == {0: "Str", 1: "tra", 2: "Str", 3: "tra"}
    reasons = [c["finish_reason"] for e in events[:-1] for c in e["choices"]]
    assert [r for r in reasons if r] == ["length"] * 4


async def test_log_probabilities_of_a_chat() -> None:
    answer = await TestEdge().chat(max_tokens=5, logprobs=True, top_logprobs=2)
    entries = answer.json()["choices"][0]["logprobs"]["content"]
    assert entries[0] == {
        "token": "S",
        "logprob": -0.5,
        "bytes": [83],
        "top_logprobs": [
            {"token": "S", "logprob": -0.5, "bytes": [83]},
            {"token": "<|im_end|>", "logprob": -1.5, "bytes": list(b"<|im_end|>")},
        ],
    }
    assert (entries[4]["token"], entries[4]["bytes"]) == ("bytes:\\xc3", [0xC3])


async def test_log_probabilities_of_a_completion() -> None:
    edge = TestEdge()
    whole = (await edge.completion(max_tokens=2, logprobs=1)).json()["choices"][0]["logprobs"]
    assert whole == {
        "tokens": ["S", "t"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"S": -0.5}, {"t": -0.5}],
        "text_offset": [0, 1],
    }
    events = events_of(await edge.completion(max_tokens=2, logprobs=1, stream=True))
    parts = [e["choices"][0]["logprobs"] for e in events[:-1] if e["choices"][0]["logprobs"]]
    assert {key: [x for part in parts for x in part[key]] for key in whole} == whole


async def test_a_stop_string_ends_and_aborts() -> None:
    executor = PlannedExecutor(hold_after=12)
    edge = TestEdge(executor)
    for stream in (False, True):
        response = await edge.completion(max_tokens=100, stop="e, ", stream=stream)
        if stream:
            assert texts_of(events_of(response)) == {0: "Straß"}
        else:
            choice = response.json()["choices"][0]
            assert (choice["text"], choice["finish_reason"]) == ("Straß", "stop")
            assert response.json()["usage"]["completion_tokens"] == 9
        assert (executor.num_running, executor.num_completed) == (0, 0)


async def test_the_fleet_is_told_that_an_aborted_answer_was_complete() -> None:
    class Watched(LocalFleet):
        routes: list[Route] = []

        def generate(self, ask: Ask, route: Route) -> AsyncIterator[TokenChunk]:
            self.routes.append(route)
            return super().generate(ask, route)

    fleet = Watched(PlannedExecutor(delay_s=0))
    edge = TestEdge(fleet=fleet)
    await edge.completion(max_tokens=100, stop="e, ")
    await edge.completion(max_tokens=3, stop="e, ")
    assert [route.is_answered for route in fleet.routes] == [True, False]


async def test_a_stop_string_of_one_choice_leaves_the_others_running() -> None:
    edge = TestEdge(PlannedExecutor(text="ab"))
    answer = (await edge.completion(n=2, max_tokens=4, stop="ba")).json()
    assert [(c["text"], c["finish_reason"]) for c in answer["choices"]] == [
        ("a", "stop"), ("", "stop"),
    ]  # fmt: skip
    answer = (await edge.completion(n=2, max_tokens=3, stop="bab")).json()
    assert [(c["text"], c["finish_reason"]) for c in answer["choices"]] == [
        ("aba", "length"), ("", "stop"),
    ]  # fmt: skip


async def test_the_models_own_end() -> None:
    executor = PlannedExecutor(end_after=3)
    answer = (await TestEdge(executor).chat(max_tokens=10)).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 3
    assert executor.num_completed == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_complete_answer_is_never_aborted(stream: bool) -> None:
    executor = PlannedExecutor(delay_s=0.001)
    await TestEdge(executor).completion(stream=stream, prompt=["a", "b"])
    assert (executor.num_completed, executor.num_running) == (2, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_headers_of_an_answer(stream: bool) -> None:
    edge = TestEdge()
    first, second = [await edge.chat(stream=stream) for _ in range(2)]
    names = ("worker", "reason", "predicted-cached-tokens")
    shown = [[r.headers[f"x-cachelane-{name}"] for name in names] for r in (first, second)]
    assert shown == [["local/0", "cold", "0"], ["local/0", "overlap", "16"]]
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


async def test_headers_tell_the_route_of_each_prompt() -> None:
    response = await TestEdge().completion(prompt=["x" * 20, "x" * 20, "y"])
    assert response.headers["x-cachelane-worker"] == "local/0,local/0,local/0"
    assert response.headers["x-cachelane-reason"] == "cold,overlap,cold"
    assert response.headers["x-cachelane-predicted-cached-tokens"] == "0,16,0"


async def test_a_repeated_request_id_is_echoed_but_does_not_name_the_request() -> None:
    edge = TestEdge()
    body = {"prompt": "Hi", "max_tokens": 1}
    headers = {"x-request-id": "same"}
    first, second, bad = await asyncio.gather(
        edge.post(COMPLETION, body, **headers),
        edge.post(COMPLETION, body, **headers),
        edge.post(COMPLETION, {}, **headers),
    )
    assert {r.headers["x-request-id"] for r in (first, second, bad)} == {"same"}
    ids = {request.request_id for request in edge.executor.requests}
    assert ids == {first.json()["id"], second.json()["id"]}
    assert len(ids) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_server_may_add_the_request_id_itself(stream: bool) -> None:
    edge = TestEdge()
    edge.app = build_api(
        edge.fleet, edge.tokenizer, Chat(edge.tokenizer), edge.settings, has_id_header=False
    )
    assert "x-request-id" not in (await edge.chat(stream=stream)).headers
    assert "x-request-id" not in (await edge.chat(stream=stream, n=0)).headers
