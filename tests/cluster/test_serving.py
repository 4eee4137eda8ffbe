"""What a client sees: the `openai` package, bursts, overload, leaving early."""

from __future__ import annotations

import contextlib
import json
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from tests.cluster.conftest import SCRIPTED
from tests.cluster.eventually import eventually
from tests.cluster.fleet import Fleet, wait_idle

Messages = list[openai.types.chat.ChatCompletionMessageParam]

MESSAGES: Messages = [
    {"role": "system", "content": "You answer what the openai package asks, at length. " * 3},
    {"role": "user", "content": "Which replica holds my prefix?"},
]
EXECUTOR = SCRIPTED["executor"]
NUM_SLOTS = EXECUTOR["num_replicas"] * EXECUTOR["max_batch_size"]
NUM_PLACES = EXECUTOR["num_replicas"] * EXECUTOR["max_waiting_requests"]


@pytest.fixture
def client(fleet: Fleet) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{fleet.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_the_openai_package_chats(fleet: Fleet, client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id
    raw = client.chat.completions.with_raw_response.create(
        model=model.id, messages=MESSAGES, max_tokens=40
    )
    answer = raw.parse()
    (choice,) = answer.choices
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 40
    assert raw.headers["x-cachelane-worker"]
    assert raw.headers["x-cachelane-reason"] in {"load", "cold"}
    assert raw.headers["x-cachelane-predicted-cached-tokens"] == "0"
    # The second request may meet the other ingress, which learns of the first from the log.
    eventually(lambda: assert_known(fleet, raw.headers["x-cachelane-worker"]))
    stream = client.chat.completions.create(
        model=model.id, messages=MESSAGES, max_tokens=40, stream=True,
        stream_options={"include_usage": True},
        # Pinned: what the scripted executor computes costs nothing, so any worker may be cheapest.
        extra_headers={"X-Cachelane-Pin": raw.headers["x-cachelane-worker"]},
    )  # fmt: skip
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == choice.message.content
    usage = chunks[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (answer.usage.prompt_tokens, 40)
    assert usage.prompt_tokens_details is not None
    # The whole prompt was there; its last token is always computed.
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1


def assert_known(fleet: Fleet, worker: str) -> None:
    assert all(overlaps[worker] > 0 for overlaps in fleet.overlaps({"messages": MESSAGES}))


def test_the_openai_package_completes_several_prompts(client: openai.OpenAI) -> None:
    raw = client.completions.with_raw_response.create(
        model="scripted",
        prompt=["first of two prompts " * 4, "second of two prompts " * 4],
        max_tokens=6,
        extra_body={"request_type": "batch"},
    )
    answer = raw.parse()
    assert [(c.index, c.finish_reason) for c in answer.choices] == [(0, "length"), (1, "length")]
    assert len(raw.headers["x-cachelane-worker"].split(",")) == 2
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    stream = client.completions.create(
        model="scripted", prompt="first of two prompts " * 4, max_tokens=6, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == answer.choices[0].text


def test_request_ids_come_back_once(fleet: Fleet) -> None:
    body = {"prompt": "id", "max_tokens": 1}
    answer = fleet.http.post("/v1/completions", json=body, headers={"x-request-id": "mine-7"})
    assert answer.headers.get_list("x-request-id") == ["mine-7"]


def test_a_burst_succeeds_and_is_spread(fleet: Fleet) -> None:
    answers = post_together(fleet.http, 60, max_tokens=30)
    assert Counter(answer.status_code for answer in answers) == {200: 60}
    assert {len(answer.json()["choices"][0]["text"]) for answer in answers} == {30}
    by_worker = Counter(answer.headers["x-cachelane-worker"] for answer in answers)
    assert by_worker.keys() == fleet.executors().keys()


def test_overload_is_said_and_leaves_nothing_behind(fleet: Fleet) -> None:
    refused = num_refused(fleet, "interactive")
    with contextlib.ExitStack() as connections:
        answers = []
        with fleet.stopped():  # or those that come late find the first ones served
            for number in range(NUM_SLOTS + NUM_PLACES + 60):
                sock = send(fleet.url, {"prompt": f"{number} too many " * 4, "max_tokens": 400})
                connections.callback(sock.close)
                answers.append(connections.enter_context(contextlib.closing(HTTPResponse(sock))))
            eventually(lambda: assert_refused_more(fleet, "interactive", refused))
        bodies = [read(answer) for answer in answers]
    assert Counter(answer.status for answer in answers).keys() == {200, 503}
    for answer, body in zip(answers, bodies, strict=True):
        if answer.status == 503:
            assert body["error"]["code"] == "overloaded"
            assert int(answer.headers["retry-after"]) >= 1
    wait_idle(fleet)


def num_refused(fleet: Fleet, tier: str) -> int:
    return sum(view["routing"]["refused_by_tier"].get(tier, 0) for view in fleet.views())


def assert_refused_more(fleet: Fleet, tier: str, than: int) -> None:
    assert num_refused(fleet, tier) > than


def read(answer: HTTPResponse) -> Any:
    answer.begin()
    return json.loads(answer.read())


@pytest.mark.parametrize("is_stream", [False, True])
def test_clients_that_leave_free_slots_places_and_blocks(fleet: Fleet, is_stream: bool) -> None:
    num_clients = 2 * NUM_SLOTS  # some run, some wait in routers and at gates
    cancelled = num_cancelled(fleet)
    with contextlib.ExitStack() as connections:
        for number in range(num_clients):
            body = {"prompt": f"{is_stream} {number} leaves " * 9, "max_tokens": 6000}
            sock = send(fleet.url, {**body, "stream": is_stream})
            connections.callback(sock.close)
        eventually(lambda: assert_load(fleet, num_clients))
    eventually(lambda: assert_cancelled(fleet, cancelled + num_clients))
    wait_idle(fleet)
    # Every slot of every gate can be used again.
    answers = post_together(fleet.http, num_clients, max_tokens=5)
    assert Counter(answer.status_code for answer in answers) == {200: num_clients}


def post_together(client: httpx.Client, count: int, max_tokens: int) -> list[httpx.Response]:
    """Different prompts, all at once."""

    def post(number: int) -> httpx.Response:
        body = {"prompt": f"{max_tokens} {number} together " * 4, "max_tokens": max_tokens}
        return client.post("/v1/completions", json=body)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(post, range(count)))


def send(url: str, body: dict[str, Any]) -> socket.socket:
    """A request whose answer nobody has read yet."""
    address = urlsplit(url)
    sock = socket.create_connection((address.hostname, address.port))
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: fleet\r\nContent-Type: application/json\r\n"
    sock.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return sock


def assert_load(fleet: Fleet, total: int) -> None:
    """All requests are there; some run, and some wait for a place or for room in a cache."""
    views = fleet.views()
    assert sum(view["routing"]["in_flight"] for view in views) == total
    assert sum(row["num_active"] for row in views[0]["workers"]) > 0
    assert sum(view["routing"]["held"] for view in views) > 0


def num_cancelled(fleet: Fleet) -> int:
    return sum(view["routing"]["outcomes"].get("cancelled", 0) for view in fleet.views())


def assert_cancelled(fleet: Fleet, total: int) -> None:
    assert num_cancelled(fleet) == total
