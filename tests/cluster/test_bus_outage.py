"""The broker dies by kill -9 under traffic, and comes back on its port."""

from __future__ import annotations

import gc
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infra.event_producer import ProducerLimits
from infra.local_broker import LocalBroker
from tests.cluster.event_log import seqs_by_epoch, topic_reader
from tests.cluster.eventually import eventually
from tests.cluster.fleet import Fleet, http_client, overlaps_of

COMPLETIONS = "/v1/completions"


def lasting(prompt: str) -> dict[str, Any]:
    """Kept whatever else the caches hold, which other tests may have filled."""
    everything = {"start": 0, "retention_priority": 100}
    return {"prompt": prompt, "max_tokens": 2, "retention": [everything]}


class Traffic:
    """One request after another; `prompts` says where each went."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.statuses: Counter[int] = Counter()
        self.reasons: list[str] = []
        self.request_ids: list[str] = []
        self.prompts: list[tuple[str, str]] = []  # prompt, worker

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        with http_client(self._url) as client:
            while not self._is_over.wait(0.05):
                prompt = f"{len(self.request_ids)} during the outage " * 4
                answer = client.post(COMPLETIONS, json=lasting(prompt))
                self.statuses[answer.status_code] += 1
                self.reasons.append(answer.headers.get("x-cachelane-reason", "none"))
                self.request_ids.append(answer.json().get("id", answer.text))
                self.prompts.append((prompt, answer.headers.get("x-cachelane-worker", "")))


def test_requests_go_on_and_the_tables_heal(fleet: Fleet, kafka_libs: Path) -> None:
    num_lost_before, began_at = num_lost(fleet), time.monotonic()
    with Traffic(fleet.url) as traffic, broker_away(fleet, kafka_libs):
        eventually(lambda: assert_silent(fleet))
        first = len(traffic.reasons) + 1  # the one that is under way may have been placed before
        eventually(lambda: assert_requests(traffic, first + 20))
        assert set(traffic.reasons[first:]) == {"stale"}
    eventually(lambda: assert_healed(fleet))
    # A very busy machine may need longer for a new broker than records wait for it.
    was_long = time.monotonic() - began_at > ProducerLimits().delivery_timeout_s
    assert traffic.statuses == {200: len(traffic.request_ids)}
    # Nothing is lost: blocks stored meanwhile are in the tables, decisions are in the log.
    eventually(lambda: assert_known(fleet, traffic.prompts[-20:]))
    with topic_reader(fleet.run.bootstrap_servers, "decisions") as log:
        eventually(lambda: assert_decisions(log.read(), traffic, num_lost(fleet) - num_lost_before))
    assert num_lost(fleet) == num_lost_before or was_long
    with topic_reader(fleet.run.bootstrap_servers, "kv-events") as log:
        for seqs in seqs_by_epoch(log.read()):
            assert seqs == list(range(seqs[0], seqs[0] + len(seqs))) or was_long


@contextmanager
def broker_away(fleet: Fleet, kafka_libs: Path) -> Iterator[None]:
    """Killed on entry, started again on the same port on exit."""
    bootstrap = fleet.broker.bootstrap
    fleet.broker.kill()
    try:
        yield
    finally:
        started = LocalBroker.start(fleet.state.path, libs_dir=kafka_libs)
        with warnings.catch_warnings():
            # What kafka-python leaves of connections to a broker that is not ready yet.
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        assert started.bootstrap == bootstrap


def assert_silent(fleet: Fleet) -> None:
    for view in fleet.views():
        assert not view["ingress"]["is_connected"]
        assert [row["stale_reason"] for row in view["workers"]] == ["silent"] * 3


def assert_requests(traffic: Traffic, count: int) -> None:
    assert len(traffic.reasons) >= count


def assert_known(fleet: Fleet, prompts: list[tuple[str, str]]) -> None:
    for prompt, worker in prompts:
        for client in fleet.ingress_clients():
            assert overlaps_of(client, {"prompt": prompt})[worker] == len(prompt) // 32


def assert_healed(fleet: Fleet) -> None:
    for view in fleet.views():
        assert view["ingress"]["is_connected"]
        assert [row["stale_reason"] for row in view["workers"]] == [None] * 3


def num_lost(fleet: Fleet) -> int:
    """Decision records, as the ingresses count them."""
    return sum(view["routing"]["decision_records_lost"] for view in fleet.views())


def assert_decisions(records: list[dict[str, str]], traffic: Traffic, num_lost: int) -> None:
    """One of each request, but for those lost; of some of them only the acknowledgement was."""
    found = Counter(record["request_id"] for record in records)
    counts = Counter(found[request_id] for request_id in traffic.request_ids)
    assert counts[0] + counts[1] == len(traffic.request_ids)
    assert counts[0] <= num_lost
