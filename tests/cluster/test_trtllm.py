"""Two replicas with EXECUTOR=trtllm on the double of the package: from events to a second turn."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import OneFleet
from tests.cluster.event_log import resident_blocks, topic_reader
from tests.cluster.eventually import eventually
from tests.cluster.fleet import Fleet, wait_idle
from tests.cluster.test_routing import CHAT, Conversation
from tests.hf_folder import write_hf_folder
from tests.trtllm_double import FOLDER
from tests.trtllm_executors import NEW

BLOCK_SIZE = 32
NUM_BLOCKS = 256


def settings_of(model: Path) -> dict[str, Any]:
    return {
        "model": {"path": str(model)},
        "executor": {
            "kind": "trtllm",
            "num_replicas": 2,
            "num_gpus": 0,  # the double needs none
            "block_size": BLOCK_SIZE,
            "max_batch_size": 8,
            "trtllm": {"max_tokens": NUM_BLOCKS * BLOCK_SIZE, "require_retention": True},
        },
    }


@pytest.fixture(scope="module")
def trtllm_fleet(one_fleet: OneFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Every process of the fleet finds the double as the package."""
    model = write_hf_folder(tmp_path_factory.mktemp("trtllm") / "double")
    with pytest.MonkeyPatch.context() as patch:
        others = os.environ.get("PYTHONPATH", "")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(FOLDER), others))))
        patch.setenv("TRTLLM_DOUBLE_VERSION", NEW)
        running = one_fleet.with_settings(settings_of(model))
        yield running
        wait_idle(running)
        one_fleet.stop()  # other tests' processes must not find the double


def test_a_second_turn_goes_where_its_prefix_is(trtllm_fleet: Fleet) -> None:
    fleet = trtllm_fleet
    with topic_reader(fleet.run.bootstrap_servers, "kv-events") as reader:
        chats = [Conversation(f"{number} with TensorRT-LLM") for number in range(4)]
        for _ in range(3):
            for chat in chats:
                chat.turn(fleet.http)
                eventually(lambda chat=chat: assert_held(fleet, chat))  # type: ignore[misc]
        for chat in chats:
            assert len(set(chat.workers)) == 1
            assert chat.reasons[1:] == ["overlap"] * 2
            assert chat.cached[0] < chat.cached[1] < chat.cached[2]
        assert len({chat.workers[0] for chat in chats}) == 2
        wait_idle(fleet)
        records = reader.read()
    assert_log(fleet, records)


def assert_held(fleet: Fleet, chat: Conversation) -> None:
    """The ingress has read from the log what the conversation left on its worker."""
    (overlaps,) = fleet.overlaps(chat.body())
    assert overlaps[chat.workers[-1]] >= 3 * len(chat.workers)


def assert_log(fleet: Fleet, records: list[Any]) -> None:
    """What the topic alone says: who is there, with which engine, and that they hold blocks."""
    ups = [e for record in records for e in record["events"] if e["type"] == "worker_up"]
    told = {(up["executor"], up["version"], up["num_blocks"]["gpu"]) for up in ups}
    assert told == {("trtllm", NEW, NUM_BLOCKS)}
    resident = resident_blocks(records, BLOCK_SIZE)
    assert resident.keys() == fleet.executors().keys()
    assert all(len(blocks) > 8 for blocks in resident.values())
    # Retention of the conversation's turns reached the engine and came back.
    stored = [e for record in records for e in record["events"] if e["type"] == "stored"]
    assert {priority for event in stored for priority in event["retention_priority"]} >= {60, 100}


def test_a_stream_and_an_error(trtllm_fleet: Fleet) -> None:
    body = {"messages": [{"role": "user", "content": "Say something. " * 9}], "max_tokens": 20}
    whole = trtllm_fleet.http.post(CHAT, json=body).raise_for_status().json()
    with trtllm_fleet.http.stream("POST", CHAT, json={**body, "stream": True}) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith("data: {")]
    assert len(lines) > 2
    assert whole["choices"][0]["finish_reason"] == "length"
    assert '"finish_reason":"length"' in lines[-1].replace(" ", "")
    too_long = trtllm_fleet.http.post("/v1/completions", json={"prompt": [1] * 9000})
    assert too_long.status_code == 400
    assert too_long.json()["error"]["code"] == "context_length_exceeded"
