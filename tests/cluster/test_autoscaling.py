"""Replicas that come with load and go without it: nothing fails, and the coldest cache goes."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from tests.cluster.conftest import SCRIPTED, OneFleet
from tests.cluster.event_log import TopicReader, topic_reader
from tests.cluster.eventually import eventually
from tests.cluster.fleet import Fleet, rows_of, wait_idle

COMPLETIONS = "/v1/completions"
SCALE_TIMEOUT_S = 100.0
NUM_CLIENTS = 12
# A prompt of 400 tokens takes 200 ms: what one replica does in a second is five of them.
PROMPT_CHARACTERS = 400
AUTOSCALED: dict[str, Any] = {
    **SCRIPTED,
    "executor": {
        **SCRIPTED["executor"],
        "num_gpu_blocks": 2048,
        "scripted": {"prefill_ms": 1.0, "prefill_ms_per_token": 0.5, "decode_ms": 5.0},
    },
    "autoscaling": {
        "enabled": True,
        "min_replicas": 1,
        "max_replicas": 3,
        "interval_s": 0.5,
        "window_s": 4.0,
        "down_settle_s": 4.0,
        "down_cooldown_s": 1.0,
        "up_cooldown_s": 1.0,
        "cold_start_s": 1.0,
        "lookahead_s": 0.0,
        "record_interval_s": 2.0,
    },
}


@pytest.fixture
def fleet(one_fleet: OneFleet) -> Iterator[Fleet]:
    running = one_fleet.with_settings(AUTOSCALED)
    yield running
    wait_idle(running)


class Clients:
    """They ask again and again, each time for something new, until they are told to stop."""

    def __init__(self, fleet: Fleet) -> None:
        self.num_by_status: Counter[int] = Counter()
        self._fleet = fleet
        self._numbers = itertools.count()
        self._is_stopping = threading.Event()
        self._lock = threading.Lock()

    def ask(self, num_characters: int, pause_s: float) -> None:
        while not self._is_stopping.wait(pause_s):
            text = f"{next(self._numbers)} " + "something new each time " * num_characters
            body = {"prompt": text[:num_characters], "max_tokens": 8}
            status = self._fleet.http.post(COMPLETIONS, json=body).status_code
            with self._lock:
                self.num_by_status[status] += 1

    @contextmanager
    def asking(self, num: int, num_characters: int, pause_s: float = 0.0) -> Iterator[None]:
        self._is_stopping.clear()
        order = [num_characters, pause_s]
        threads = [threading.Thread(target=self.ask, args=order) for _ in range(num)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._is_stopping.set()
            for thread in threads:
                thread.join()


class Warmth:
    """Keeps one worker's cache in use, as a client would that comes back again and again."""

    def __init__(self, fleet: Fleet, worker: str) -> None:
        self._fleet = fleet
        self._pin = {"x-cachelane-pin": worker}
        self.failed: list[int] = []

    def ask(self) -> None:
        body = {"prompt": "what everybody asks about " * 40, "max_tokens": 2}
        response = self._fleet.http.post(COMPLETIONS, json=body, headers=self._pin)
        if response.status_code != 200:
            self.failed.append(response.status_code)


def test_one_to_three_and_back_to_the_warmest(fleet: Fleet) -> None:
    (oldest,) = fleet.executors()
    clients = Clients(fleet)
    with topic_reader(fleet.broker.bootstrap, "scaling") as scaling:
        with clients.asking(NUM_CLIENTS, PROMPT_CHARACTERS):
            eventually(lambda: assert_workers(fleet, 3), SCALE_TIMEOUT_S)
            time_to_serve(fleet, clients)
        # Serve by itself would stop the newest first.
        newest = max(rows_of(fleet.views()[0]).items(), key=lambda row: row[1]["epoch"])[0]
        assert newest != oldest
        warmth = Warmth(fleet, newest)
        with clients.asking(2, num_characters=20, pause_s=0.1):  # it goes on while replicas leave
            eventually(lambda: assert_down_to(fleet, newest, warmth), SCALE_TIMEOUT_S)
        assert clients.num_by_status.keys() == {200}
        assert warmth.failed == []
        eventually(lambda: assert_told(scaling))
    with topic_reader(fleet.broker.bootstrap, "kv-events") as events:
        eventually(lambda: assert_said_goodbye(events, newest))


def test_to_zero_and_back(fleet: Fleet) -> None:
    """An idle fleet goes; the first requests are told to come again, and find a replica then."""
    settings = fleet.settings
    autoscaling = msgspec.structs.replace(settings.autoscaling, min_replicas=0, zero_after_s=1.0)
    fleet.redeploy(msgspec.structs.replace(settings, autoscaling=autoscaling))
    try:
        eventually(lambda: assert_workers(fleet, 0), SCALE_TIMEOUT_S)
        eventually(lambda: assert_served(fleet), SCALE_TIMEOUT_S)
    finally:
        fleet.redeploy(settings)
        eventually(lambda: assert_workers(fleet, 1), SCALE_TIMEOUT_S)


def assert_served(fleet: Fleet) -> None:
    response = fleet.http.post(COMPLETIONS, json={"prompt": "is anybody there", "max_tokens": 2})
    assert response.status_code in (200, 503), response.text
    assert response.status_code == 200 or int(response.headers["retry-after"]) > 0
    assert response.status_code == 200


def time_to_serve(fleet: Fleet, clients: Clients) -> None:
    """Until all three have answered something."""
    before = sum(clients.num_by_status.values())
    eventually(lambda: assert_answered(clients, before + 30), SCALE_TIMEOUT_S)


def assert_answered(clients: Clients, num: int) -> None:
    assert sum(clients.num_by_status.values()) >= num


def assert_workers(fleet: Fleet, num: int) -> None:
    assert all(len(view["workers"]) == num for view in fleet.views())


def assert_down_to(fleet: Fleet, worker: str, warmth: Warmth) -> None:
    warmth.ask()
    assert all(list(rows_of(view)) == [worker] for view in fleet.views()), fleet.views()
    assert list(fleet.executors()) == [worker]


def assert_told(scaling: TopicReader) -> None:
    """Every step is in the log, with what it was decided by."""
    records = scaling.read()
    steps = [r for r in records if r["action"] != "hold"]
    path = [1, *(step["target_replicas"] for step in steps)]
    assert path in ([1, 3, 2, 1], [1, 2, 3, 2, 1]), steps
    for step in steps:
        assert step["deployment"] == "Executor"
        assert not step["is_advisory"]
    up, down = steps[0], steps[-1]
    assert up["reason"] in ("ttft", "itl", "slots", "measured latency")
    assert up["demand"] > 0.5
    assert (down["reason"], down["num_known"]) == ("fewer do", 2)
    assert any(record["action"] == "hold" for record in records)


def assert_said_goodbye(events: TopicReader, survivor: str) -> None:
    gone = {
        record["worker"]
        for record in events.read()
        if any(event["type"] == "worker_down" for event in record["events"])
    }
    workers = {record["worker"] for record in events.records}
    assert gone == workers - {survivor}
