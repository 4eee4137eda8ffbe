"""Where requests go: conversations stay, first turns spread, two ingresses agree."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.cluster.eventually import eventually
from tests.cluster.fleet import BLOCK_SIZE, Fleet, overlaps_of, rows_of

CHAT = "/v1/chat/completions"
COMMON_FIELDS = ("worker", "epoch", "stale", "num_blocks", "resident_blocks",
                 "resident_blocks_by_retention_priority")  # fmt: skip


class Conversation:
    """Grows by about four blocks a turn."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.messages = [{"role": "system", "content": f"This is conversation {name}. " * 9}]
        self.workers: list[str] = []
        self.reasons: list[str] = []
        self.cached: list[int] = []

    def body(self) -> dict[str, Any]:
        return {"messages": self.messages, "max_tokens": 40}

    def turn(self, client: httpx.Client) -> None:
        question = f"Turn {len(self.workers)} of conversation {self.name}: how are you? " * 2
        self.messages.append({"role": "user", "content": question})
        answer = client.post(CHAT, json=self.body()).raise_for_status()
        self.workers.append(answer.headers["x-cachelane-worker"])
        self.reasons.append(answer.headers["x-cachelane-reason"])
        self.cached.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        self.messages.append(answer.json()["choices"][0]["message"])


def test_a_conversation_stays_on_its_worker(fleet: Fleet) -> None:
    chat = Conversation("through HAProxy")
    for _ in range(6):
        chat.turn(fleet.http)
        eventually(lambda: assert_held(fleet, chat))
    assert set(chat.workers) == {chat.workers[0]}
    assert chat.reasons[1:] == ["overlap"] * 5
    assert chat.cached[0] < BLOCK_SIZE  # where a block is left that begins with the same letters
    assert chat.cached[1:] == sorted(set(chat.cached[1:]))


def test_first_turns_spread_over_all_workers(fleet: Fleet) -> None:
    """Early in the file: turns go by the work of the last 20 s, and there is little yet."""
    chats = [Conversation(f"{number} of many") for number in range(30)]
    for chat in chats:
        chat.turn(fleet.http)
    by_worker = Counter(chat.workers[0] for chat in chats)
    assert by_worker.keys() == fleet.executors().keys()
    assert min(by_worker.values()) >= 4


def assert_held(fleet: Fleet, chat: Conversation) -> None:
    """Every ingress knows all that the conversation left on its worker, and on no other."""
    for overlaps in fleet.overlaps(chat.body()):
        holder = overlaps.pop(chat.workers[-1])
        assert holder >= 4 * len(chat.workers)
        assert set(overlaps.values()) == {0}


@pytest.mark.parametrize("number", range(3))
def test_turns_without_a_pause_stay_too(fleet: Fleet, number: int) -> None:
    """The next turn may be faster than the events of the last: predictions cover it."""
    (ingress, *_) = fleet.ingress_clients()
    chat = Conversation(f"ten rounds {number}")
    for _ in range(10):
        chat.turn(ingress)
    assert set(chat.workers) == {chat.workers[0]}
    assert set(chat.reasons[1:]) <= {"overlap", "predicted"}


def test_a_shared_system_prompt_does_not_pull_everybody_to_one_worker(fleet: Fleet) -> None:
    system = {"role": "system", "content": "You are shared by everybody and known to all. " * 20}

    def first_turn(number: int) -> httpx.Response:
        question = {"role": "user", "content": f"{number}: a question of my own. " * 8}
        return fleet.http.post(CHAT, json={"messages": [system, question], "max_tokens": 60})

    first_turn(0)
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(first_turn, range(1, 25)))
    by_worker = Counter(answer.headers["x-cachelane-worker"] for answer in answers)
    assert by_worker.keys() == fleet.executors().keys()


def test_two_ingresses_agree_after_quiet(fleet: Fleet) -> None:
    chats = [Conversation(f"{number} for both") for number in range(8)]
    for chat in chats:
        chat.turn(fleet.http)
    eventually(lambda: assert_same_tables(fleet))
    for chat in chats:
        (one, other) = fleet.overlaps(chat.body())
        assert one == other
        assert one[chat.workers[0]] >= 8
    ids = {view["ingress"]["id"] for view in fleet.views()}
    assert len(ids) == 2
    seen: set[str] = set()
    eventually(lambda: assert_seen_through_haproxy(fleet, seen, ids))


def assert_same_tables(fleet: Fleet) -> None:
    (one, other) = [
        {worker: {name: row[name] for name in COMMON_FIELDS} for worker, row in rows_of(v).items()}
        for v in fleet.views()
    ]
    assert one == other


def assert_seen_through_haproxy(fleet: Fleet, seen: set[str], ids: set[str]) -> None:
    seen.add(fleet.http.get("/fleet").json()["ingress"]["id"])
    assert seen == ids


def test_explaining_reserves_nothing(fleet: Fleet) -> None:
    (ingress, *_) = fleet.ingress_clients()
    before = ingress.get("/fleet").json()["routing"]
    overlaps_of(ingress, {"prompt": "only asking " * 20})
    assert ingress.get("/fleet").json()["routing"] == before
