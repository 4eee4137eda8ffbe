"""Processes that die: a replica, every replica, an ingress."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx

from tests.cluster.event_log import TopicReader, delete_records, topic_reader
from tests.cluster.eventually import eventually
from tests.cluster.fleet import Fleet, rows_of

COMPLETIONS = "/v1/completions"
REPLACE_TIMEOUT_S = 90.0
LONG = 1500  # tokens of a stream that outlives what happens meanwhile: 3 s


def test_a_replica_dies_while_requests_run_and_wait(fleet: Fleet) -> None:
    body = {"prompt": "this prefix is on the replica that dies " * 20, "max_tokens": 4}
    victim = fleet.http.post(COMPLETIONS, json=body).headers["x-cachelane-worker"]
    eventually(lambda: assert_overlap_everywhere(fleet, body, victim))
    epochs = {worker: row["epoch"] for worker, row in rows_of(fleet.views()[0]).items()}
    (ingress, *_) = fleet.ingress_clients()
    process = fleet.executors()[victim]
    waiting = {**body, "prompt": f"{body['prompt']} and a question"}
    pin = {"x-cachelane-pin": victim}  # where it is as long as it lives
    with (
        ThreadPoolExecutor() as pool,
        MidStream(ingress, {**waiting, "max_tokens": LONG}, pin) as stream,
    ):
        assert stream.worker == victim
        process.process.suspend()
        unanswered = pool.submit(ingress.post, COMPLETIONS, json=waiting, headers=pin)
        eventually(lambda: assert_in_flight(ingress, 2))
        process.kill()
        assert_ran_elsewhere(fleet, unanswered, victim)
        assert_went_on(ingress, stream, {**waiting, "max_tokens": LONG})
    eventually(lambda: assert_replaced(fleet, victim), REPLACE_TIMEOUT_S)
    (new,) = rows_of(fleet.views()[0]).keys() - epochs.keys()
    assert all(rows_of(view)[new]["epoch"] > max(epochs.values()) for view in fleet.views())
    assert [set(overlaps) for overlaps in fleet.overlaps(body)] == [set(fleet.executors())] * 2
    eventually(lambda: assert_takes_requests(fleet, new))


class MidStream:
    """A streamed answer, read up to its first event."""

    def __init__(
        self, client: httpx.Client, body: dict[str, Any], headers: dict[str, str] | None = None
    ) -> None:
        self._open = client.stream(
            "POST", COMPLETIONS, json={**body, "stream": True}, headers=headers
        )

    def __enter__(self) -> MidStream:
        self._response = self._open.__enter__()
        self.worker = self._response.headers["x-cachelane-worker"]
        self._lines = self._response.iter_lines()
        self.first = next(self._lines)
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def events(self) -> list[Any]:
        """All of them, when the stream has ended."""
        lines = [self.first, *self._lines]
        data = [line.removeprefix("data: ") for line in lines if line]
        assert data[-1] == "[DONE]"
        return [json.loads(item) for item in data[:-1]]


def assert_went_on(client: httpx.Client, stream: MidStream, body: dict[str, Any]) -> None:
    """The stream has the text that an undisturbed answer has, under one id, and its end."""
    events = stream.events()
    assert len({event["id"] for event in events}) == 1
    (whole,) = client.post(COMPLETIONS, json=body).raise_for_status().json()["choices"]
    assert "".join(event["choices"][0]["text"] for event in events) == whole["text"]
    assert [event["choices"][0]["finish_reason"] for event in events][-1] == "length"


def assert_overlap_everywhere(fleet: Fleet, body: dict[str, Any], worker: str) -> None:
    assert all(overlaps[worker] > 0 for overlaps in fleet.overlaps(body))


def assert_in_flight(ingress: httpx.Client, count: int) -> None:
    assert ingress.get("/fleet").json()["routing"]["in_flight"] == count


def assert_ran_elsewhere(fleet: Fleet, answer: Future[httpx.Response], victim: str) -> None:
    response = answer.result(60)
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["completion_tokens"] == 4
    assert response.headers["x-cachelane-worker"] in fleet.executors().keys() - {victim}
    request_id = response.json()["id"]
    with topic_reader(fleet.run.bootstrap_servers, "decisions") as log:
        record = eventually(lambda: record_of(log.read(), request_id))
    assert (record["num_attempts"], record["status"]) == (2, "ok")


def record_of(records: list[Any], request_id: str) -> Any:
    found = [record for record in records if record["request_id"] == request_id]
    assert len(found) == 1
    return found[0]


def assert_replaced(fleet: Fleet, *gone: str) -> None:
    """Every ingress knows as many workers as before, none of them gone, and what they hold."""
    running = set(fleet.executors())
    assert len(running) == 3
    assert not running & set(gone)
    for view in fleet.views():
        rows = rows_of(view)
        assert rows.keys() == running
        assert not any(row["stale"] for row in rows.values())


def assert_takes_requests(fleet: Fleet, worker: str) -> None:
    """Of those that no worker knows; with each that goes elsewhere it is more the idlest."""
    body = {"prompt": f"{uuid.uuid4()} whoever is idle " * 9, "max_tokens": 1}
    answer = fleet.http.post(COMPLETIONS, json=body)
    assert answer.headers["x-cachelane-worker"] == worker


def test_every_replica_dies_and_requests_wait_or_are_told_to_come_again(fleet: Fleet) -> None:
    gone = fleet.executors()
    for replica in gone.values():
        replica.kill()
    answers: list[httpx.Response] = []
    eventually(lambda: assert_served_in_the_end(fleet, answers), REPLACE_TIMEOUT_S)
    for answer in answers[:-1]:
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] in {"not_ready", "worker_failed"}
        assert int(answer.headers["retry-after"]) >= 1
    eventually(lambda: assert_replaced(fleet, *gone), REPLACE_TIMEOUT_S)


def assert_served_in_the_end(fleet: Fleet, answers: list[httpx.Response]) -> None:
    answers.append(fleet.http.post(COMPLETIONS, json={"prompt": "anybody?", "max_tokens": 1}))
    assert answers[-1].status_code == 200


def test_an_ingress_dies_and_its_successor_knows_what_all_workers_hold(fleet: Fleet) -> None:
    bodies = [{"prompt": f"{n} is known to both ingresses " * 9, "max_tokens": 1} for n in range(6)]
    workers = [fleet.http.post(COMPLETIONS, json=b).headers["x-cachelane-worker"] for b in bodies]
    (victim, _) = fleet.replicas("Ingress")
    # The log no longer holds the snapshots of the workers' start: the successor has to ask.
    delete_records(fleet.run.bootstrap_servers, "kv-events")
    with topic_reader(fleet.run.bootstrap_servers, "kv-events", from_end=True) as log:
        victim.kill()
        statuses = [fleet.http.post(COMPLETIONS, json=body).status_code for body in bodies]
        assert statuses == [200] * len(bodies)
        eventually(lambda: assert_ready(fleet, victim.replica), REPLACE_TIMEOUT_S)
        eventually(lambda: assert_snapshots(log, fleet.executors()))
    for body, worker in zip(bodies, workers, strict=True):
        (one, other) = fleet.overlaps(body)
        assert one == other
        assert one[worker] == len(body["prompt"]) // 32  # type: ignore[arg-type]


def assert_snapshots(log: TopicReader, workers: Collection[str]) -> None:
    """Every worker was asked for what it holds, and told it."""
    log.read()
    for worker in workers:
        assert "snapshot" in {event["type"] for event in log.events(worker)}


def assert_ready(fleet: Fleet, gone: str) -> None:
    """Two ingresses, neither the one that died, both ready because every worker is known."""
    replicas = fleet.replicas("Ingress")
    assert len(replicas) == 2
    assert gone not in {replica.replica for replica in replicas}
    for view in fleet.views():
        assert view["ready"]
        assert [row["stale_reason"] for row in view["workers"]] == [None] * 3
