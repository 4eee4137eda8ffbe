from __future__ import annotations

import math
import random

import pytest

from controllers.errors import WorkerFull
from controllers.fair_queue import Bounds
from controllers.gate import Gate, GateRules
from controllers.waiting import Waiting


def gate(
    max_waiting: int = 100, shared: int = 1536, max_running: int = 100, kept: float = 0.0
) -> Gate:
    return Gate(GateRules(Bounds(max_waiting), shared, max_running, 8192, kept))


def submit(
    g: Gate, name: str, tokens: int, now: float = 0.0, rank: int = 0, tenant: str = "t"
) -> list[str]:
    return names(g.submit(Waiting(name, tokens, now, rank, tenant)))


def names(items: list[Waiting]) -> list[str]:
    return [item.request_id for item in items]


def start(g: Gate, now: float = 0.0) -> list[str]:
    return names(g.start(now))


def test_one_prefill_at_a_time_unless_they_are_short() -> None:
    g = gate()
    for name, tokens in (("a", 1000), ("b", 500), ("c", 600), ("d", 2000)):
        submit(g, name, tokens)
    assert start(g) == ["b", "c"]  # with a: 2100
    assert start(g) == []
    g.prefill_ended("c")
    assert start(g) == ["a"]
    g.prefill_ended("b")
    assert start(g) == []
    assert g.prefill_ended("a") is True
    assert start(g) == ["d"]
    assert g.prefill_ended("a") is False
    assert (g.num_waiting, g.num_running, g.waiting_tokens) == (0, 4, 0)


def test_a_long_prefill_goes_alone() -> None:
    g = gate()
    submit(g, "long", 5000)
    submit(g, "longer", 6000)
    assert start(g) == ["long"]


def test_an_end_without_a_first_token_ends_its_prefill() -> None:
    g = gate()
    submit(g, "a", 5000)
    submit(g, "b", 6000)
    assert start(g) == ["a"]
    g.leave("a", 1.0)
    assert start(g) == ["b"]


def test_the_first_in_order_is_not_overtaken_by_shorter_prefills() -> None:
    g = gate()
    submit(g, "running", 100)
    start(g)
    submit(g, "old and long", 3000)
    submit(g, "new and short", 10, now=60.0)
    assert start(g) == []
    g.prefill_ended("running")
    assert start(g) == ["old and long"]


def test_full_hits_pass() -> None:
    g = gate()
    submit(g, "running", 9000)
    start(g)
    submit(g, "long", 3000)
    submit(g, "hit", 0, now=60.0)
    submit(g, "another", 0, now=61.0)
    assert g.waiting_tokens == 3000
    assert start(g, 61.0) == ["hit", "another"]
    assert g.num_waiting == 1


def test_a_worse_ranks_hits_leave_a_place_for_who_is_first() -> None:
    g = gate(max_running=4)
    submit(g, "running", 9000)
    start(g)
    submit(g, "chat", 3000)
    for i in range(5):
        submit(g, f"hit{i}", 0, rank=1)
    assert start(g) == ["hit0", "hit1"]
    submit(g, "chat hit", 0)
    assert start(g) == ["chat hit"]  # of its own rank: it takes the last place


def test_free_places_bound_what_starts() -> None:
    g = gate(max_running=2)
    for i in range(5):
        submit(g, f"r{i}", i)
    assert start(g) == ["r0", "r1"]
    assert (g.num_waiting, g.waiting_tokens) == (3, 2 + 3 + 4)
    g.leave("r0", 0.0)
    assert start(g) == ["r2"]


def test_a_better_rank_goes_first_whatever_it_costs() -> None:
    g = gate()
    submit(g, "running", 5000)
    start(g)
    submit(g, "batch", 2000, rank=2)
    submit(g, "chat", 90_000, now=5.0)
    g.prefill_ended("running")
    assert start(g, 5.0) == ["chat"]
    g.prefill_ended("chat")
    assert start(g, 5.0) == ["batch"]


def test_a_flood_of_a_worse_rank_leaves_places_for_a_better_one() -> None:
    g = gate(max_running=8, kept=0.5)
    submit(g, "chat0", 0)
    assert start(g) == ["chat0"]
    for i in range(20):
        submit(g, f"batch{i}", 0, now=1.0, rank=2)
    assert start(g, 1.0) == [f"batch{i}" for i in range(6)]  # 8 - (1 + 1)
    submit(g, "chat1", 0, now=2.0)
    assert start(g, 2.0) == ["chat1"]
    g.leave("chat0", 3.0)
    g.leave("batch0", 3.0)
    assert start(g, 3.0) == ["batch6"]  # 6 again: one more than chat1 is kept


def test_a_full_gate_refuses_and_stays_as_it_is() -> None:
    g = gate(max_waiting=2)
    submit(g, "running", 9000)
    start(g)
    submit(g, "a", 10)
    submit(g, "b", 20)
    with pytest.raises(WorkerFull, match="2 requests with 30 tokens to prefill wait") as caught:
        submit(g, "c", 1)
    assert caught.value.retry_after_s >= 1.0
    assert (g.num_waiting, g.waiting_tokens) == (2, 30)
    g.leave("a", 0.0)
    submit(g, "c", 1)
    g.prefill_ended("running")
    assert start(g) == ["c", "b"]


def test_an_id_cannot_be_here_twice() -> None:
    g = gate()
    submit(g, "a", 10)
    with pytest.raises(ValueError, match="'a' waits already"):
        submit(g, "a", 99)
    start(g)
    with pytest.raises(ValueError, match="'a' runs already"):
        submit(g, "a", 99)
    assert (g.num_waiting, g.num_running) == (0, 1)


def test_who_is_late_is_found() -> None:
    g = gate()
    submit(g, "running", 9000)
    start(g)
    g.submit(Waiting("soon", 10, 0.0, deadline_s=1.0))
    g.submit(Waiting("later", 10, 0.0, deadline_s=5.0))
    g.submit(Waiting("any time", 10, 0.0))
    assert g.expire(0.9) == []
    assert names(g.expire(1.0)) == ["soon"]
    g.prefill_ended("running")
    assert start(g, 2.0) == ["later", "any time"]
    assert g.expire(9.0) == []  # they run


def test_an_id_that_comes_again_has_its_new_deadline() -> None:
    g = gate(max_running=1)
    submit(g, "running", 0)
    start(g)
    g.submit(Waiting("a", 10, 0.0, deadline_s=1.0))
    g.leave("a", 0.5)
    g.submit(Waiting("a", 10, 0.5, deadline_s=3.0))
    assert g.expire(2.0) == []
    assert names(g.expire(3.0)) == ["a"]


def test_cancelled_deadlines_leave_nothing_behind() -> None:
    g = gate(max_running=1)
    for i in range(5_000):
        g.submit(Waiting(f"r{i}", 10, i / 1000, deadline_s=1e9))
        g.leave(f"r{i}", i / 1000)
    assert len(g._deadlines) <= 65
    assert (g.num_waiting, g.num_running, g._places.num_free(0, 5.0)) == (0, 0, 1)


def test_unknown_ids_change_nothing() -> None:
    g = gate()
    submit(g, "a", 10)
    g.leave("nobody", 0.0)
    assert g.prefill_ended("a") is False  # it waits
    assert (g.num_waiting, g.num_running, g.waiting_tokens) == (1, 0, 10)
    assert start(g) == ["a"]


def test_every_request_is_started_sent_away_or_cancelled_exactly_once() -> None:
    rng = random.Random(5)
    g = gate(max_waiting=30, max_running=6, kept=0.5)
    fate: dict[str, str] = {}
    running: list[str] = []
    waiting: set[str] = set()

    def note(found: list[str], what: str) -> None:
        for name in found:
            assert name in waiting, (name, what)
            waiting.discard(name)
            fate[name] = what

    for step in range(1500):
        now, name = step / 100, f"r{step}"
        item = Waiting(
            name, rng.choice((0, 10, 500, 5000)), now, rng.randrange(3), rng.choice("abc"),
            rng.choice((0.5, 1.0, 3.0)), rng.choice((float("inf"), now + 0.5)),
            rng.choice((float("inf"), float("inf"), 60_000)),
        )  # fmt: skip
        try:
            displaced = names(g.submit(item))
            waiting.add(name)
            note(displaced, "displaced")
        except WorkerFull:
            fate[name] = "refused"
        note(names(g.expire(now)), "late")
        if waiting and rng.random() < 0.2:
            victim = rng.choice(sorted(waiting))
            g.leave(victim, now)
            note([victim], "cancelled")
        started = start(g, now)
        note(started, "started")
        running += started
        note(names(g.hand_back(now)), "handed back")
        for who in [who for who in running if rng.random() < 0.15]:
            g.prefill_ended(who)
            if rng.random() < 0.7:
                g.leave(who, now)
                running.remove(who)
        assert g.num_running == len(running) <= 6
        assert g.num_waiting == len(waiting) <= 30
    for what in ("started", "displaced", "refused", "late", "cancelled", "handed back"):
        assert sum(value == what for value in fate.values()) > 20, what
    assert len(fate) + len(waiting) == 1500
    for who in [*waiting, *running]:
        g.leave(who, 40.0)
    assert (g.num_waiting, g.num_running, g.waiting_tokens, g.waiting_by_rank()) == (0, 0, 0, {})
    assert (g._owed, g._owed_tokens, g._places.num_free(0, 40.0)) == ({}, 0, 6)


def test_a_busy_gate_gathers_what_comes_in_one_moment() -> None:
    g = Gate(GateRules(Bounds(100), 1536, 100, 8192, gather_s=0.002))
    submit(g, "alone", 4000)
    assert start(g) == ["alone"]  # an idle engine starts at once
    g.prefill_ended("alone")
    submit(g, "long", 5000, 1.0)
    submit(g, "hit", 0, 1.0)
    assert start(g, 1.0) == ["hit"]
    assert g.gathers_until(1.0) == 1.002
    submit(g, "short", 3000, 1.001)
    assert start(g, 1.001) == []
    assert start(g, 1.002) == ["short"]
    assert g.gathers_until(1.002) is None
    g.prefill_ended("short")
    assert start(g, 1.003) == ["long"]


def submit_with(
    g: Gate,
    name: str,
    tokens: int,
    most: float,
    now: float = 0.0,
    rank: int = 0,
    deadline_s: float = math.inf,
) -> None:
    g.submit(Waiting(name, tokens, now, rank, "t", 1.0, deadline_s, most))


def handed_back(g: Gate, now: float = 0.0) -> list[str]:
    return names(g.hand_back(now))


def test_who_finds_more_before_it_than_it_may_is_handed_back() -> None:
    g = gate()
    submit(g, "running", 4000)
    start(g)
    submit_with(g, "patient", 5000, 4000)
    submit_with(g, "late", 6000, 8999)
    submit_with(g, "later", 7000, 9000)
    submit(g, "anything goes", 8000)
    submit_with(g, "hit", 0, 0)
    assert start(g) == ["hit"]
    assert handed_back(g) == ["late"]  # and counts for nobody behind it any more
    assert (g.num_waiting, g.waiting_tokens, g.num_running) == (3, 20_000, 2)
    g.prefill_ended("running")
    assert start(g) == ["patient"]


def test_it_is_judged_once_and_not_when_it_runs_or_has_left() -> None:
    g = gate()
    submit_with(g, "first", 4000, 0)
    assert (start(g), handed_back(g)) == (["first"], [])
    submit_with(g, "second", 5000, 4000)
    submit_with(g, "gone", 5000, 0)
    g.leave("gone", 0.0)
    assert handed_back(g) == []
    submit(g, "short", 100)
    assert handed_back(g) == []  # what comes later passes it, as ever
    g.prefill_ended("first")
    assert start(g) == ["short"]
    g.prefill_ended("short")
    assert start(g) == ["second"]


def test_an_id_that_comes_again_is_judged_by_what_it_says_then() -> None:
    g = gate()
    submit(g, "running", 4000)
    start(g)
    submit_with(g, "again", 5000, 0)
    assert handed_back(g) == ["again"]
    submit(g, "again", 5000)
    assert (handed_back(g), g.num_waiting) == ([], 1)
    g.leave("again", 0.0)
    submit_with(g, "again", 5000, 0)
    g.leave("again", 0.0)
    submit_with(g, "again", 5000, 4000)
    assert (handed_back(g), g.num_waiting) == ([], 1)


def test_only_what_comes_before_it_counts() -> None:
    g = gate()
    submit(g, "running", 4000)
    start(g)
    submit(g, "worse", 100, rank=2)
    submit_with(g, "own", 5000, 4000, rank=1)
    assert handed_back(g) == []
    submit(g, "better", 9000, rank=0)
    submit_with(g, "next", 5000, 4000 + 5000 + 9000 - 1, now=0.001, rank=1)
    assert handed_back(g) == ["next"]


def test_nobody_is_handed_back_before_the_gate_has_gathered() -> None:
    g = Gate(GateRules(Bounds(100), 1536, 100, 8192, gather_s=0.002))
    submit(g, "running", 10)
    start(g)
    g.prefill_ended("running")
    submit_with(g, "long", 5000, 0, 1.0)
    assert (start(g, 1.0), handed_back(g, 1.0)) == ([], [])
    submit_with(g, "short", 3000, 0, 1.001)
    assert (start(g, 1.002), handed_back(g, 1.002)) == (["short"], ["long"])


def test_one_that_was_handed_back_has_no_deadline_here() -> None:
    g = gate()
    submit(g, "running", 4000)
    start(g)
    submit_with(g, "q", 5000, 0, deadline_s=1)
    assert handed_back(g) == ["q"]
    assert (g.expire(2.0), g.num_waiting) == ([], 0)


def test_one_that_others_gave_way_to_keeps_the_place() -> None:
    g = Gate(GateRules(Bounds(1), 1536, 100, 8192))
    submit(g, "running", 4000)
    start(g)
    submit(g, "worse", 100, rank=2)
    item = Waiting("better", 5000, 0.0, tenant="t", rank=1, max_ahead_tokens=0)
    assert names(g.submit(item)) == ["worse"]
    assert (handed_back(g), g.num_waiting) == ([], 1)


def test_nobody_gathers_for_one_without_peers() -> None:
    g = Gate(GateRules(Bounds(100), 1536, 100, 8192, gather_s=0.002))
    submit(g, "running", 10)
    start(g)
    g.prefill_ended("running")
    g.submit(Waiting("alone", 5000, 1.0, tenant="t", has_peers=False))
    assert (g.gathers_until(1.0), start(g, 1.0)) == (None, ["alone"])
