"""Ingresses that learn from each other's requests, over a log in memory."""

from __future__ import annotations

import threading

import msgspec
import pytest

from controllers.prompt_use import PromptUse
from controllers.record_codec import encode
from controllers.records import PrefixUse
from controllers.retention import Retention
from controllers.shared_uses import MAX_RUNNING_S, UseRecords
from infra.event_bus_memory import MemoryBus
from infra.settings import Settings
from serve_app.fleet import Ask, Route
from serve_app.outcome import Outcome
from serve_app.retention_keeper import RetentionKeeper
from serve_app.use_exchange import UseExchange
from tests.routing_rig import BLOCK_SIZE, ask, settings

WORKER = "a-0"
TOKENS = list(range(40))


def with_policy(policy: str, num_ingress: int) -> Settings:
    return settings(retention={"policy": policy}, http={"num_ingress": num_ingress})


class Ingress:
    """A keeper whose exchange is read by hand."""

    def __init__(self, name: str, bus: MemoryBus) -> None:
        self.now = 100.0
        self.keeper = RetentionKeeper(settings(), bus, name, lambda: self.now)
        self.keeper.set_workers({WORKER: 1000})
        self.exchange = self.keeper._exchange = self.keeper.open_exchange()

    def send(self, request_id: str, tokens: list[int] = TOKENS) -> tuple[Outcome, Retention]:
        outcome = Outcome(learned_ask(request_id, tokens), Route(worker=WORKER), lambda: self.now)
        return outcome, self.keeper.retention(outcome, self.now)

    def end(self, outcome: Outcome, num_cached_tokens: int) -> None:
        outcome.cached_tokens = num_cached_tokens
        self.keeper.finished(outcome, self.now)

    def hear(self) -> None:
        self.exchange.turn()

    @property
    def heard(self) -> tuple[int, int, int]:
        others = self.keeper.describe()["others"]
        return others["num_sent"], others["num_done"], others["num_running"]


def learned_ask(request_id: str, tokens: list[int]) -> Ask:
    plain = ask(request_id, tokens)
    use = PromptUse(plain.hashes, len(tokens), BLOCK_SIZE, "interactive")
    return msgspec.structs.replace(plain, prompt_use=use)


def records_of(bus: MemoryBus) -> list[PrefixUse]:
    found = bus.reader(bus.topics.uses).poll(0)
    return [msgspec.json.decode(record.value, type=PrefixUse) for record in found]


def test_what_one_serves_the_other_learns() -> None:
    bus = MemoryBus()
    a, b = Ingress("a", bus), Ingress("b", bus)
    outcome, _ = a.send("r1")
    b.hear()
    assert b.heard == (1, 0, 1)
    a.end(outcome, 0)
    b.hear()
    assert b.heard == (1, 1, 0)
    a.now = b.now = 107.0
    assert a.send("r2")[1] == b.send("r3")[1]
    a.hear()
    assert a.heard == (1, 0, 1)
    assert a.keeper.describe()["remembered_blocks"] == 10


def test_another_attempt_is_told_without_the_prompt() -> None:
    bus = MemoryBus()
    a = Ingress("a", bus)
    outcome, _ = a.send("r1")
    a.keeper.retention(outcome, a.now)  # another piece for the same worker
    outcome.route.worker = "b-0"
    a.keeper.retention(outcome, a.now)
    a.end(outcome, 8)
    told = [(r.seq, r.state, r.worker, len(r.hashes), r.num_cached_blocks) for r in records_of(bus)]
    assert told == [(0, "sent", WORKER, 160, None), (1, "sent", "b-0", 0, None),
                    (2, "done", "b-0", 0, 2)]  # fmt: skip


def test_an_ingress_that_starts_late_learns_from_the_log() -> None:
    bus = MemoryBus()
    a = Ingress("a", bus)
    for number in range(5):
        outcome, _ = a.send(f"r{number}", [1000 * number + token for token in TOKENS])
        a.end(outcome, 0)
    late = Ingress("late", bus)
    late.hear()
    assert late.heard == (5, 5, 0)
    assert late.keeper.describe()["remembered_blocks"] == 50


def test_what_is_too_old_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = MemoryBus()
    Ingress("a", bus).send("r1")
    late = Ingress("late", bus)
    monkeypatch.setattr("serve_app.use_exchange.MAX_AGE_S", -1.0)
    late.hear()
    assert late.heard == (0, 0, 0)


def test_damaged_records_are_counted_and_the_next_one_counts() -> None:
    bus = MemoryBus()
    a, b = Ingress("a", bus), Ingress("b", bus)
    producer = bus.producer()
    good = UseRecords("x").sent("q", WORKER, PromptUse([1], 4, BLOCK_SIZE, "agent"), 0)
    for value in (
        b"{",
        b"[]",
        encode(msgspec.structs.replace(good, schema=2)),
        encode(msgspec.structs.replace(good, hashes="z" * 16)),
    ):
        producer.publish(bus.topics.uses, b"all", value)
    a.send("r1")
    b.hear()
    assert b.heard == (1, 0, 1)
    assert b.keeper.describe()["others"]["num_bad"] == 4


def test_a_prompt_too_long_to_be_told_is_served_all_the_same() -> None:
    bus = MemoryBus(max_record_bytes=500)
    a = Ingress("a", bus)
    _, planned = a.send("r1", list(range(400)))
    assert planned.ranges != ()
    assert a.keeper.describe()["others"]["num_unsent"] == 1
    assert records_of(bus) == []


def test_a_topic_that_was_made_anew_is_read_on() -> None:
    bus = MemoryBus()
    a, b = Ingress("a", bus), Ingress("b", bus)
    b.hear()
    bus.recreate_topic(bus.topics.uses)
    b.hear()
    a.send("r1")
    b.hear()
    assert b.heard == (1, 0, 1)


def test_what_an_ingress_that_died_had_running_ends_without_news() -> None:
    bus = MemoryBus()
    a, b = Ingress("a", bus), Ingress("b", bus)
    a.send("r1")
    b.hear()
    b.keeper.tick(b.now + MAX_RUNNING_S - 1.0)
    assert b.heard == (1, 0, 1)
    b.keeper.tick(b.now + MAX_RUNNING_S)
    assert b.heard == (1, 0, 0)


@pytest.mark.parametrize(("policy", "num_ingress"), [("static", 2), ("learned", 1)])
def test_nothing_is_told_or_read_unless_several_learn(policy: str, num_ingress: int) -> None:
    bus = MemoryBus()
    keeper = RetentionKeeper(settings(), bus, "a", lambda: 1.0)
    threads = set(threading.enumerate())
    keeper.configure(with_policy(policy, num_ingress))
    assert (bus._producers, set(threading.enumerate())) == ([], threads)
    assert keeper.describe()["is_shared"] is False
    keeper.set_workers({WORKER: 1000})
    outcome = Outcome(learned_ask("r1", TOKENS), Route(worker=WORKER), lambda: 1.0)
    keeper.retention(outcome, 1.0)
    keeper.finished(outcome, 1.0)
    assert records_of(bus) == []


def test_sharing_begins_and_ends_with_the_policy() -> None:
    bus = MemoryBus()
    keeper = RetentionKeeper(settings(), bus, "a", lambda: 1.0)
    exchanges: list[UseExchange | None] = []
    for policy, num_ingress in (("learned", 2), ("learned", 3), ("learned", 1), ("learned", 2)):
        keeper.configure(with_policy(policy, num_ingress))
        exchanges.append(keeper._exchange)
    first, same, none, again = exchanges
    assert first is same
    assert first is not None
    assert none is None
    assert again not in (first, None)
    keeper.close()
    for exchange in (first, again):
        assert exchange is not None
        exchange._thread.join(10.0)
        assert not exchange._thread.is_alive()
    assert all(producer.health().is_connected is False for producer in bus._producers)
