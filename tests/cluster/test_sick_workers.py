"""Workers that live and do not work: one that hangs, one that got slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import pytest

from tests.cluster.eventually import eventually
from tests.cluster.fleet import Fleet, rows_of
from tests.cluster.test_failures import REPLACE_TIMEOUT_S, assert_replaced

COMPLETIONS = "/v1/completions"
HANG = {"prompt": "please hang, whoever reads this " * 4, "max_tokens": 4, "request_type": "hasty"}


@pytest.fixture
def one_attempt(fleet: Fleet) -> Iterator[Fleet]:
    """A prompt that hangs its worker would hang the next one too."""
    settings = fleet.settings
    failover = msgspec.structs.replace(settings.failover, max_attempts=1)
    fleet.redeploy(msgspec.structs.replace(settings, failover=failover))
    yield fleet
    fleet.redeploy(settings)


def test_a_worker_that_hangs_is_left_out_at_once_and_replaced(one_attempt: Fleet) -> None:
    fleet = one_attempt
    victim = sorted(fleet.executors())[0]
    (who_found_out, other) = fleet.ingress_clients()
    answer = who_found_out.post(COMPLETIONS, json=HANG, headers={"x-cachelane-pin": victim})
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "worker_failed"
    assert_left_out(who_found_out, victim)
    eventually(lambda: assert_left_out(other, victim))  # the worker's next load record says it
    eventually(lambda: assert_replaced(fleet, victim), REPLACE_TIMEOUT_S)


def assert_left_out(client: httpx.Client, victim: str) -> None:
    """Nobody goes there, not even who asks for it."""
    body = {"prompt": "anybody but the one that hangs", "max_tokens": 4}
    answer = client.post(COMPLETIONS, json=body, headers={"x-cachelane-pin": victim}, timeout=10.0)
    assert answer.status_code == 200
    assert answer.headers["x-cachelane-worker"] != victim


def test_a_worker_that_got_slow_gets_less(fleet: Fleet) -> None:
    slow = {"prompt": "please be slow from now on", "max_tokens": 40}
    answer = fleet.http.post(COMPLETIONS, json=slow).raise_for_status()
    victim = answer.headers["x-cachelane-worker"]
    try:
        eventually(lambda: assert_gets_less(fleet, victim), 30.0)
    finally:
        fleet.executors()[victim].kill()
        eventually(lambda: assert_replaced(fleet, victim), REPLACE_TIMEOUT_S)


def assert_gets_less(fleet: Fleet, victim: str) -> None:
    """Of requests that could go anywhere, by what the ingresses measured of its iterations."""
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda n: fleet.http.post(COMPLETIONS, json=fresh(n)), range(30)))
    by_worker = Counter(answer.headers["x-cachelane-worker"] for answer in answers)
    assert by_worker[victim] <= 5
    assert sum(by_worker.values()) == 30
    assert rows_of(fleet.views()[0]).keys() == fleet.executors().keys()


def test_a_burst_of_bad_requests_is_no_failure_of_a_worker(fleet: Fleet) -> None:
    workers = fleet.executors()
    bad = [{"prompt": "Hi", "max_tokens": -1}, {"prompt": "x" * 9000}, {"prompt": [10**6]}]
    with ThreadPoolExecutor(8) as pool:
        sent = pool.map(lambda n: fleet.http.post(COMPLETIONS, json=bad[n % 3]), range(200))
    assert Counter(answer.status_code for answer in sent) == {400: 200}
    for worker in workers:
        for client in fleet.ingress_clients():  # one that is suspected gets not even these
            pin = {"x-cachelane-pin": worker}
            answer = client.post(COMPLETIONS, json={"prompt": "Hi", "max_tokens": 1}, headers=pin)
            assert answer.headers["x-cachelane-worker"] == worker
    assert fleet.executors() == workers


def fresh(number: int) -> dict[str, Any]:
    return {"prompt": f"{number} is a prompt of its own " * 10, "max_tokens": 20}
