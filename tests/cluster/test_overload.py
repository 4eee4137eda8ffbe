"""More work than the fleet can do: who is served, who is refused, and what clients are told."""

from __future__ import annotations

import contextlib
import itertools
import json
import select
import socket
import threading
from http.client import HTTPResponse
from typing import Any

import httpx

from tests.cluster.eventually import eventually
from tests.cluster.fleet import Fleet, wait_idle
from tests.cluster.test_serving import (
    NUM_PLACES,
    NUM_SLOTS,
    assert_refused_more,
    num_refused,
    send,
)

COMPLETIONS = "/v1/completions"
LONG = 800  # tokens, 1.6 s on an idle worker


class Flood:
    """So many clients with a batch request of seconds each; who was served comes again.

    So it lasts until it is left, however fast the fleet is, and however slowly requests arrive.
    """

    def __init__(self, fleet: Fleet, count: int) -> None:
        self.num_refused = 0
        self._url = fleet.url
        self._numbers = itertools.count()
        self._socks = [self._send() for _ in range(count)]
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        for sock in self._socks:
            sock.close()

    def _send(self) -> socket.socket:
        prompt = f"{next(self._numbers)} of a flood "
        return send(self._url, {"prompt": prompt, "max_tokens": LONG, "request_type": "batch"})

    def _run(self) -> None:
        while not self._is_over.is_set():
            answered, _, _ = select.select(self._socks, [], [], 0.05)
            for sock in answered:
                self._socks.remove(sock)
                with sock:
                    status = read(sock)
                if status == 200:
                    self._socks.append(self._send())
                else:
                    assert status == 503
                    self.num_refused += 1


def num_waiting(fleet: Fleet) -> int:
    """Without a first token, wherever they wait."""
    return sum(view["routing"]["waiting"] for view in fleet.views())


def assert_waiting(fleet: Fleet, at_least: int) -> None:
    assert num_waiting(fleet) >= at_least


def test_chats_pass_a_flood_of_batch_requests(fleet: Fleet) -> None:
    refused = num_refused(fleet, "batch")
    with Flood(fleet, NUM_SLOTS + NUM_PLACES + 30) as flood:
        eventually(lambda: assert_waiting(fleet, NUM_SLOTS))
        for number, client in enumerate(fleet.ingress_clients()):
            body = {"prompt": f"chat {number} " * 4, "max_tokens": 5}
            assert client.post(COMPLETIONS, json=body).status_code == 200
        # Not at once: for a moment everybody may have started, until those served come again.
        eventually(lambda: assert_waiting(fleet, NUM_SLOTS))
        eventually(lambda: assert_refused_more(fleet, "batch", refused))
        eventually(lambda: assert_refused_some(flood))
    wait_idle(fleet)


def assert_refused_some(flood: Flood) -> None:
    assert flood.num_refused > 0


def read(sock: socket.socket) -> int:
    """The status of an answer that is all there."""
    with contextlib.closing(HTTPResponse(sock)) as answer:
        answer.begin()
        body = json.loads(answer.read())
    if answer.status == 503:
        assert (body["error"]["code"], body["error"]["type"]) == ("overloaded", "server_error")
        assert int(answer.headers["retry-after"]) >= 1
    return answer.status


def test_who_may_not_wait_so_long_is_refused_and_does_not_hang(fleet: Fleet) -> None:
    with Flood(fleet, NUM_SLOTS + NUM_PLACES // 2):
        eventually(lambda: assert_waiting(fleet, NUM_SLOTS))
        body = {"prompt": "in a hurry " * 4, "max_tokens": 5, "request_type": "hurried"}
        answer = fleet.http.post(COMPLETIONS, json=body)
        eventually(lambda: assert_waiting(fleet, 1))
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "overloaded"
    wait_idle(fleet)


def test_a_tenant_may_have_only_so_many_requests_at_a_time(fleet: Fleet) -> None:
    (client, _) = fleet.ingress_clients()
    headers = {"authorization": "Bearer one-by-one"}
    long = {"prompt": "a long one " * 4, "max_tokens": 5000, "stream": True}
    short = {"prompt": "a short one " * 4, "max_tokens": 1}
    with client.stream("POST", COMPLETIONS, json=long, headers=headers) as stream:
        assert stream.status_code == 200
        answer = client.post(COMPLETIONS, json=short, headers=headers)
        assert client.post(COMPLETIONS, json=short).status_code == 200
    assert_limited(answer, "tenant 'one by one' may have 2 requests at a time")
    assert answer.headers["retry-after"] == "1"
    eventually(lambda: assert_served(client, short, headers))


def assert_served(client: httpx.Client, body: dict[str, Any], headers: dict[str, str]) -> None:
    assert client.post(COMPLETIONS, json=body, headers=headers).status_code == 200


def test_a_tenant_over_its_rate_is_told_when_to_come_again(fleet: Fleet) -> None:
    headers = {"authorization": "Bearer rare"}
    body = {"prompt": "one in a while " * 4, "max_tokens": 1}
    for client in fleet.ingress_clients():
        assert_served(client, body, headers)
        answer = client.post(COMPLETIONS, json=body, headers=headers)
        assert_limited(answer, "tenant 'rare' is over 0.02 requests per second")
        assert 90 < int(answer.headers["retry-after"]) <= 100


def assert_limited(answer: httpx.Response, message: str) -> None:
    assert answer.status_code == 429
    assert answer.json()["error"] == {
        "message": message,
        "type": "rate_limit_error",
        "param": None,
        "code": "rate_limit_exceeded",
    }
