"""Requests that wait in routers until a worker can start them, and long prompts in pieces."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.cluster.event_log import topic_reader
from tests.cluster.eventually import eventually
from tests.cluster.fleet import BLOCK_SIZE, Fleet, wait_idle
from tests.cluster.test_failures import (
    REPLACE_TIMEOUT_S,
    MidStream,
    assert_replaced,
    record_of,
)
from tests.cluster.test_serving import send

COMPLETIONS = "/v1/completions"
NUM_REQUESTS = 30
NUM_WORKERS = 3
# The scripted engines take 4 x (512 - 8) tokens as a piece, of prompts with more than half as much
# again to compute; its tokens are bytes.
LONG = "a prompt that is computed in pieces, which its client does not notice. " * 75
NUM_PIECES = 2


def test_a_long_prompt_goes_out_in_pieces_and_nobody_sees_it(fleet: Fleet) -> None:
    (client, _) = fleet.ingress_clients()
    body = {"prompt": LONG, "max_tokens": 20}
    pieces = num_pieces(client)
    cut = client.post(COMPLETIONS, json=body).raise_for_status()
    assert num_pieces(client) - pieces == NUM_PIECES
    whole = client.post(COMPLETIONS, json=body).raise_for_status()  # it is cached now
    assert num_pieces(client) - pieces == NUM_PIECES
    assert cut.json()["choices"] == whole.json()["choices"]
    assert cut.headers["x-cachelane-worker"] == whole.headers["x-cachelane-worker"]
    usage, usage_of_whole = cut.json()["usage"], whole.json()["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert cached < BLOCK_SIZE  # where a block is left that begins with the same letters
    assert usage_of_whole["prompt_tokens_details"]["cached_tokens"] == len(LONG) - 1
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert usage[name] == usage_of_whole[name]
    with topic_reader(fleet.run.bootstrap_servers, "decisions") as log:
        record = eventually(lambda: record_of(log.read(), cut.json()["id"]))
        again = eventually(lambda: record_of(log.read(), whole.json()["id"]))
        assert not [r for r in log.records if "/" in r["request_id"]]
    assert (record["num_pieces"], record["num_attempts"]) == (NUM_PIECES, 1)
    assert record["cached_tokens"] == cached
    assert (record["output_tokens"], record["prompt_tokens"]) == (20, len(LONG))
    assert (again["num_pieces"], again["status"]) == (0, "ok")


def num_pieces(client: httpx.Client) -> int:
    number = client.get("/fleet").json()["routing"]["pieces"]
    assert isinstance(number, int)
    return number


def test_a_stream_with_a_prompt_in_pieces_is_one_stream(fleet: Fleet) -> None:
    body = {"prompt": f"streamed {LONG}", "max_tokens": 5}
    with MidStream(fleet.http, body) as stream:
        events = stream.events()
    (whole,) = fleet.http.post(COMPLETIONS, json=body).raise_for_status().json()["choices"]
    assert len({event["id"] for event in events}) == 1
    assert "".join(event["choices"][0]["text"] for event in events) == whole["text"]


def body_of(number: int, what: str) -> dict[str, Any]:
    """Two of these fill the cache of a worker, so that a third one waits whatever time goes by."""
    return {"prompt": f"{number} {what} ".ljust(2900, "x"), "max_tokens": 10}


def post(client: httpx.Client, number: int, what: str) -> httpx.Response:
    return client.post(COMPLETIONS, json=body_of(number, what))


def num_held(client: httpx.Client) -> int:
    held = client.get("/fleet").json()["routing"]["held"]
    assert isinstance(held, int)
    return held


def assert_held(client: httpx.Client, at_least: int) -> None:
    assert num_held(client) >= at_least


def test_a_burst_waits_in_its_router_and_is_served(fleet: Fleet) -> None:
    (client, _) = fleet.ingress_clients()
    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        with fleet.stopped():
            answers = [pool.submit(post, client, n, "of a burst") for n in range(NUM_REQUESTS)]
            eventually(lambda: assert_held(client, NUM_REQUESTS - 2 * NUM_WORKERS))
        responses = [answer.result(60) for answer in answers]
    assert {response.status_code for response in responses} == {200}
    workers = {response.headers["x-cachelane-worker"] for response in responses}
    assert workers == fleet.executors().keys()
    wait_idle(fleet)


def test_a_replica_dies_while_requests_wait_in_the_router(fleet: Fleet) -> None:
    (client, _) = fleet.ingress_clients()
    workers = list(fleet.executors())
    victim = fleet.executors()[workers[0]]
    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        with fleet.stopped():
            answers = [pool.submit(post, client, n, "of those left") for n in range(NUM_REQUESTS)]
            eventually(lambda: assert_held(client, NUM_REQUESTS - 2 * NUM_WORKERS))
            victim.kill()
        responses = [answer.result(60) for answer in answers]
    assert {response.status_code for response in responses} == {200}
    assert workers[0] not in {r.headers["x-cachelane-worker"] for r in responses}
    eventually(lambda: assert_replaced(fleet, workers[0]), REPLACE_TIMEOUT_S)


def test_clients_that_leave_while_they_wait_leave_nothing(fleet: Fleet) -> None:
    (client, _) = fleet.ingress_clients()
    with fleet.stopped():
        with contextlib.ExitStack() as connections:
            for number in range(12):
                sock = send(str(client.base_url), body_of(number, "of those who go"))
                connections.callback(sock.close)
            eventually(lambda: assert_held(client, 12 - 2 * NUM_WORKERS))
        eventually(lambda: assert_nobody_held(client))
    wait_idle(fleet)


def assert_nobody_held(client: httpx.Client) -> None:
    assert num_held(client) == 0
