"""The learned policy on the running fleet, and what `tune` makes of the fleet's log."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from typer.testing import CliRunner

from controllers.promising import AS_LRU
from serve_app.cli_app import app_for
from tests.cluster.event_log import topic_reader
from tests.cluster.eventually import eventually
from tests.cluster.fleet import BLOCK_SIZE, Fleet, wait_idle
from tests.cluster.test_policies import pids_of

app = app_for([])

COMPLETIONS = "/v1/completions"
NUM_TURNS = 4
TURN = "what was said in this turn of a conversation. " * 3


@pytest.fixture
def learning(fleet: Fleet) -> Iterator[Fleet]:
    """The fleet with `policy: learned`; afterwards as it was."""
    before = fleet.settings
    retention = msgspec.structs.replace(before.retention, policy="learned")
    fleet.redeploy(msgspec.structs.replace(before, retention=retention))
    eventually(lambda: assert_sharing(fleet, True))
    yield fleet
    fleet.redeploy(before)
    eventually(lambda: assert_sharing(fleet, False))


def assert_sharing(fleet: Fleet, is_shared: bool) -> None:
    assert [view["retention"]["is_shared"] for view in fleet.views()] == [is_shared] * 2


def ask(client: httpx.Client, prompt: str, **headers: str) -> httpx.Response:
    body = {"prompt": prompt, "max_tokens": 2}
    return client.post(COMPLETIONS, json=body, headers=headers).raise_for_status()


def test_promises_reach_the_engines_and_every_ingress_learns(learning: Fleet) -> None:
    fleet, first = learning, str(uuid.uuid4())
    pids, before = pids_of(fleet), [others_of(view) for view in fleet.views()]
    ingresses = fleet.ingress_clients()
    # Its turns are short, and what the workers did before may make another one cheaper.
    pin = {"x-cachelane-pin": sorted(fleet.executors())[0]}
    with topic_reader(fleet.broker.bootstrap, "kv-events", from_end=True) as log:
        answers = []
        for turn in range(NUM_TURNS):
            prompt = first + TURN * (turn + 1)
            answers.append(ask(ingresses[turn % 2], prompt, **pin))
            known = len(prompt) // BLOCK_SIZE
            eventually(partial(assert_known, fleet, prompt, known))
        (worker,) = {answer.headers["x-cachelane-worker"] for answer in answers}
        num_blocks = (len(first) + NUM_TURNS * len(TURN)) // BLOCK_SIZE
        eventually(lambda: assert_promised(log.read(), worker, num_blocks))
    cached = [cached_tokens_of(answer) for answer in answers]
    whole = [(len(first) + turn * len(TURN)) // BLOCK_SIZE for turn in range(NUM_TURNS)]
    assert cached[0] < BLOCK_SIZE  # where a block is left that begins with the same letters
    assert [tokens // BLOCK_SIZE for tokens in cached[1:]] == whole[1:]
    # Each has heard of the two requests that the other one served.
    eventually(lambda: assert_heard(fleet, before, NUM_TURNS // 2))
    assert pids_of(fleet) == pids


def assert_known(fleet: Fleet, prompt: str, num_blocks: int) -> None:
    """To both ingresses: what they promise goes by what they know to be there."""
    known = [max(of.values()) for of in fleet.overlaps({"prompt": prompt, "max_tokens": 1})]
    assert known == [num_blocks] * 2


def others_of(view: Any) -> dict[str, int]:
    others: dict[str, int] = view["retention"]["others"]
    return others


def assert_heard(fleet: Fleet, before: list[dict[str, int]], num: int) -> None:
    for was, view in zip(before, fleet.views(), strict=True):
        now = others_of(view)
        assert (now["num_sent"], now["num_done"]) == (was["num_sent"] + num, was["num_done"] + num)
        assert now["num_running"] == now["num_bad"] == now["num_unsent"] == 0


def assert_promised(records: list[Any], worker: str, num_blocks: int) -> None:
    """Learned levels are 37 and a little more, or the one by which a cache behaves as LRU."""
    stored = [
        priority
        for record in records
        if record["worker"] == worker
        for event in record["events"]
        if event["type"] == "stored"
        for priority, num_tokens in zip(
            event["retention_priority"], event["num_tokens"], strict=True
        )
        if num_tokens == BLOCK_SIZE
    ]
    assert len(stored) == num_blocks
    assert all(37 <= priority < 48 or priority == AS_LRU for priority in stored)


def cached_tokens_of(answer: httpx.Response) -> int:
    cached: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


def test_tune_reads_the_live_log_and_says_the_same_of_its_dumps(
    fleet: Fleet, tmp_path: Path
) -> None:
    with topic_reader(fleet.broker.bootstrap, "decisions") as log:
        prompts: list[str] = []
        for number in range(60):
            session = f"session {number % 5 + number // 15 * 5} {fleet.state.path} "
            prompts.append(session + TURN * (1 + number % 15 // 5))
            prompts.append(f"asked once {uuid.uuid4()} " + TURN)
        request_ids = {ask(fleet.http, prompt).json()["id"] for prompt in prompts}
        eventually(lambda: assert_written(log.read(), request_ids))
    wait_idle(fleet)
    state = ["--state-dir", str(fleet.state.path)]
    live = run("tune", "--json", *state)
    dumps = [tmp_path / "events.jsonl", tmp_path / "decisions.jsonl"]
    dumps[0].write_text(run("events", "--json", *state))
    dumps[1].write_text(run("events", "--topic", "decisions", "--json", *state))
    files = ["--events", str(dumps[0]), "--decisions", str(dumps[1])]
    dumped = run("tune", *files, "--config", str(fleet.state.settings_file), "--json")
    report = json.loads(live)
    assert json.loads(dumped) == report
    num_known = report["num_decisions"] - report["num_unknown"] - report["num_unserved"]
    assert report["num_fitted"] + report["num_judged"] == num_known >= len(prompts)
    policies = {each["name"]: each for each in report["policies"]}
    assert list(policies) == ["lru", "present", "proposed tiers", "learned"]
    assert policies["present"]["gains"] == [0.0, 0.0]
    assert 0.0 < policies["lru"]["hit_rate"] < 1.0
    assert 0.0 < report["measured_hit_rate"] < 1.0
    assert policies[report["best"]]["holds"] or report["best"] == "present"


def assert_written(decisions: list[Any], request_ids: set[str]) -> None:
    assert request_ids <= {decision["request_id"] for decision in decisions}


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout
