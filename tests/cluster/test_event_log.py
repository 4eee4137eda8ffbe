"""What the log says, read by a plain consumer: hashes, schemas, residency, what leaves first."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator

from controllers.blocks import as_token_array, block_hashes
from controllers.events import hexes_of
from infra.record_schemas import path_of
from serve_app.model_files import load_text
from tests.cluster.conftest import NUM_BLOCKS
from tests.cluster.event_log import TopicReader, resident_blocks, seqs_by_epoch, topic_reader
from tests.cluster.eventually import eventually
from tests.cluster.fleet import BLOCK_SIZE, Fleet, rows_of

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def test_the_ingress_and_the_engine_hash_alike(fleet: Fleet) -> None:
    messages = [{"role": "user", "content": "The same hash in every process. " * 12}]
    body = {"messages": messages, "max_tokens": 1}
    with topic_reader(fleet.run.bootstrap_servers, "kv-events", from_end=True) as log:
        worker = fleet.http.post(CHAT, json=body).headers["x-cachelane-worker"]
        hashes = hashes_here(messages)
        eventually(lambda: assert_stored(log, worker, hashes))
    eventually(lambda: assert_known(fleet, body, worker, len(hashes)))


def assert_known(fleet: Fleet, body: dict[str, Any], worker: str, num_blocks: int) -> None:
    """To every ingress: each reads the log for itself."""
    assert [overlaps[worker] for overlaps in fleet.overlaps(body)] == [num_blocks] * 2


def hashes_here(messages: list[dict[str, str]]) -> list[str]:
    """Of the full blocks of a chat's prompt, computed in this process."""
    text = load_text(None)
    assert text.chat is not None
    tokens = as_token_array(text.chat.prompt(messages).token_ids)
    return hexes_of(block_hashes(tokens, BLOCK_SIZE))


def assert_stored(log: TopicReader, worker: str, hashes: list[str]) -> None:
    log.read()
    stored = [e for e in log.events(worker) if e["type"] == "stored"]
    assert [block for e in stored for block in e["hashes"] if block in hashes] == hashes


def test_every_record_keeps_its_schema(fleet: Fleet) -> None:
    fleet.http.post(COMPLETIONS, json={"prompt": "a decision for the log " * 9, "max_tokens": 40})
    for topic, expected in (
        ("kv-events", {"worker_up", "snapshot", "stored", "load"}),
        ("decisions", set()),
    ):
        with topic_reader(fleet.run.bootstrap_servers, topic) as log:
            records = eventually(lambda log=log: some_records(log))  # type: ignore[misc]
        validator = Draft202012Validator(json.loads(path_of(topic).read_text("utf-8")))
        for record in records[:200] + records[-200:]:
            validator.validate(record)
        types = {event["type"] for record in records for event in record.get("events", ())}
        assert types >= expected


def some_records(log: TopicReader) -> list[Any]:
    assert log.read()
    return log.records


def test_seq_has_no_holes_and_the_log_alone_says_what_the_tables_hold(fleet: Fleet) -> None:
    fleet.http.post(COMPLETIONS, json={"prompt": "one more for the log " * 30, "max_tokens": 70})
    with topic_reader(fleet.run.bootstrap_servers, "kv-events") as log:
        eventually(lambda: assert_tables_match(fleet, log))
    for seqs in seqs_by_epoch(log.records):
        assert seqs == list(range(len(seqs)))


def assert_tables_match(fleet: Fleet, log: TopicReader) -> None:
    views = fleet.views()
    held = resident_blocks(log.read(), BLOCK_SIZE)
    for view in views:
        for worker, row in rows_of(view).items():
            assert row["resident_blocks"].get("gpu", 0) == len(held[worker])


def test_oneoff_traffic_leaves_before_a_system_prompt(fleet: Fleet) -> None:
    messages = [{"role": "system", "content": "You survive what is asked only once. " * 18}]
    with topic_reader(fleet.run.bootstrap_servers, "kv-events") as log:
        worker = ask(fleet, messages, "first").headers["x-cachelane-worker"]
        num_before = eventually(lambda: num_events(log, worker, hashes_here(messages)[-1]))
        fill_with_oneoffs(fleet, worker)
        # Pinned: what the scripted executor computes costs nothing, so any worker may be cheapest.
        answer = ask(fleet, messages, "second", {"x-cachelane-pin": worker})
        assert answer.headers["x-cachelane-worker"] == worker
        usage = answer.json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= len(hashes_here(messages)) * 32
        log.read()
    # Each of these would have found the system prompt as the least recently used.
    num_removed = assert_oneoffs_left_first(log.events(worker), num_before)
    assert num_removed >= len(hashes_here(messages))


def ask(
    fleet: Fleet,
    messages: list[dict[str, str]],
    question: str,
    headers: dict[str, str] | None = None,
) -> Any:
    user = {"role": "user", "content": question}
    body = {"messages": [*messages, user], "max_tokens": 2}
    return fleet.http.post(CHAT, json=body, headers=headers).raise_for_status()


def num_events(log: TopicReader, worker: str, block: str) -> int:
    """Events of the worker so far, of which one stored the block."""
    log.read()
    events = log.events(worker)
    assert any(event["type"] == "stored" and block in event["hashes"] for event in events)
    return len(events)


def fill_with_oneoffs(fleet: Fleet, worker: str) -> None:
    """So many one-off blocks on the worker that the least recently used blocks must all go."""
    num_blocks = number = 0
    while num_blocks <= NUM_BLOCKS:
        body = {"prompt": f"{number} once " * 140, "max_tokens": 1, "request_type": "oneoff"}
        answer = fleet.http.post(COMPLETIONS, json=body, headers={"x-cachelane-pin": worker})
        assert answer.headers["x-cachelane-worker"] == worker
        num_blocks += answer.json()["usage"]["prompt_tokens"] // BLOCK_SIZE
        number += 1


def assert_oneoffs_left_first(events: list[Any], start: int) -> int:
    """From event `start` on, no other full block leaves while one of a one-off request is there.

    Partial blocks are left out: a request that goes on from one takes it over: no eviction.
    Returns how many one-off blocks left.
    """
    block_to_tier: dict[str, str] = {}
    num_removed = 0
    for number, event in enumerate(events):
        if event["type"] == "stored":
            sizes = zip(event["hashes"], event["num_tokens"], strict=True)
            full = [block for block, num_tokens in sizes if num_tokens == BLOCK_SIZE]
            block_to_tier.update(dict.fromkeys(full, event["tier"]))
        elif event["type"] == "removed":
            for block in event["hashes"]:
                tier = block_to_tier.pop(block, None)
                num_removed += tier == "oneoff" and number >= start
                if number >= start and tier not in (None, "oneoff"):
                    assert "oneoff" not in block_to_tier.values()
    return num_removed
