"""Placement where some workers have no room to promise to keep a prompt."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from controllers.events import Removed, hexes_of
from controllers.placement import Query, Sent
from controllers.prompt_use import PromptUse
from tests.placement_rig import BLOCK, Fleet

numbers = random.Random(3)


class Refused:
    """`lost_tokens` by worker of every prompt, and who asked."""

    def __init__(self, **lost_tokens: float) -> None:
        self.lost = {name.replace("_", "-"): num for name, num in lost_tokens.items()}
        self.asked: list[tuple[PromptUse, float]] = []

    def lost_tokens(self, prompt: PromptUse, now: float) -> dict[str, float]:
        self.asked.append((prompt, now))
        return self.lost


def blocks(count: int) -> list[int]:
    return [numbers.getrandbits(64) for _ in range(count)]


def learned(fleet: Fleet, hashes: list[int], **fields: object) -> Query:
    """A request whose prompt is kept by what was learned."""
    use = PromptUse(hashes, len(hashes) * BLOCK + 7, BLOCK, "agent")
    return fleet.query(hashes, prompt_use=use, **fields)


def test_a_request_goes_where_its_prompt_can_be_kept() -> None:
    losses = Refused(r0_0=3200.0, r2_0=3200.0)
    fleet = Fleet(3, losses=losses)
    query = learned(fleet, blocks(100))
    assert fleet.choose(query).worker == "r1-0"
    assert losses.asked == [(query.prompt_use, fleet.now)]


def test_a_loss_of_the_future_is_no_reason_to_compute_more_now() -> None:
    """The prefix is on the worker that would refuse the rest."""
    fleet = Fleet(2, losses=Refused(r0_0=50.0 * BLOCK), loss_weight=1.0)
    turn = blocks(100)
    fleet.store("r0-0", turn)
    placed = fleet.choose(learned(fleet, turn + blocks(50)))
    assert (placed.worker, placed.reason) == ("r0-0", "overlap")


def test_it_is_one_when_more_would_be_lost_than_is_found() -> None:
    fleet = Fleet(2, losses=Refused(r0_0=180.0 * BLOCK), loss_weight=1.0)
    turn = blocks(20)
    fleet.store("r0-0", turn)
    assert fleet.choose(learned(fleet, turn + blocks(180))).worker == "r1-0"


def test_it_does_not_wait_for_a_busy_worker_for_a_small_loss() -> None:
    fleet = Fleet(2, losses=Refused(r0_0=10.0 * BLOCK), loss_weight=1.0)
    fleet.choose(fleet.query(blocks(2000), pinned="r1-0"))
    assert fleet.choose(learned(fleet, blocks(100))).worker == "r0-0"


def test_predicted_times_are_those_of_the_request_alone() -> None:
    plain, refused = Fleet(1), Fleet(1, losses=Refused(r0_0=3200.0))
    hashes = blocks(100)
    assert refused.choose(learned(refused, hashes)) == plain.choose(learned(plain, hashes))


def test_what_all_refuse_decides_nothing() -> None:
    names = {f"r{i}_0": 3200.0 for i in range(4)}
    fleet = Fleet(4, losses=Refused(**names))
    turn = blocks(10)
    fleet.store("r2-0", turn)
    assert fleet.choose(learned(fleet, turn + blocks(90))).worker == "r2-0"


def test_nobody_is_asked_about_requests_that_are_not_kept_by_what_was_learned() -> None:
    losses = Refused(r0_0=3200.0)
    fleet = Fleet(2, losses=losses)
    assert {fleet.choose(fleet.query(blocks(100))).worker for _ in range(20)} == {"r0-0", "r1-0"}
    for policy in ("random", "round_robin", "least_requests"):
        other = Fleet(2, losses=losses, policy=policy)
        other.choose(learned(other, blocks(100)))
    other.choose(learned(other, blocks(100), pinned="r0-0"))
    assert losses.asked == []


def test_the_weight_of_losses_is_a_setting() -> None:
    losses = Refused(r0_0=3200.0)
    hashes = blocks(100)
    lost_ms = {}
    for weight in (0.0, 0.5, 1.0):
        fleet = Fleet(1, losses=losses, loss_weight=weight)
        explained = fleet.placement.explain(learned(fleet, hashes), fleet.table, fleet.now)
        lost_ms[weight] = explained["candidates"][0]["lost_ms"]
    assert lost_ms[0.0] == 0.0 < lost_ms[0.5] == lost_ms[1.0] / 2
    assert len(losses.asked) == 4  # to choose and to explain, twice


def test_requests_that_wait_are_asked_about_when_they_are_looked_at() -> None:
    fleet = Fleet(2, losses=Refused(r0_0=3200.0))
    query = learned(fleet, blocks(100))
    fleet.placement.submit(query, fleet.now)
    (sent,) = fleet.placement.run(fleet.table, fleet.now)
    assert isinstance(sent, Sent)
    assert (sent.request_id, sent.placed.worker) == (query.request_id, "r1-0")


def test_what_is_gone_while_a_request_waits_is_not_counted_on() -> None:
    """A promise that ends evicts nothing; what is evicted the log tells, and the choice is made
    when the request is sent."""
    fleet = Fleet(2)
    turn = blocks(1000)
    fleet.store("r0-0", turn)
    fleet.choose(fleet.query(blocks(100), pinned="r0-0"))
    fleet.placement.submit(learned(fleet, turn + blocks(1)), fleet.now)
    assert fleet.placement.run(fleet.table, fleet.now) == []  # it waits for the prefix's worker
    fleet.tell("r0-0", Removed(hashes=hexes_of(turn[10:])))
    fleet.now += 0.05
    (sent,) = fleet.placement.run(fleet.table, fleet.now)
    assert isinstance(sent, Sent)
    placed = sent.placed
    assert (placed.worker, placed.predicted_cached_tokens) == ("r1-0", 0)
    assert placed.best_cached_tokens == 10 * BLOCK


def test_idle_workers_that_would_lose_the_same_take_turns() -> None:
    """Those that would lose more take none, however little they were used."""
    fleet = Fleet(4, losses=Refused(r0_0=3200.0, r3_0=640.0), loss_weight=1.0)
    counts: Counter[str] = Counter()
    for _ in range(20):
        query = learned(fleet, blocks(100))
        counts[fleet.choose(query).worker] += 1
        fleet.now += 0.5
        fleet.placement.first_token(query.request_id, fleet.now)
        fleet.placement.release(query.request_id, fleet.now, 1)
    assert counts == {"r1-0": 10, "r2-0": 10}


def test_an_explanation_names_the_loss() -> None:
    fleet = Fleet(2, losses=Refused(r0_0=8192.0), loss_weight=1.0)
    explained = fleet.placement.explain(learned(fleet, blocks(100)), fleet.table, fleet.now)
    kept, refused = explained["candidates"]
    full_ms = float(fleet.placement._ledger.model.prefill_ms(8192, 0.0, 1.0))
    assert (
        [c["worker"] for c in (kept, refused)] == [explained["worker"], "r0-0"] == ["r1-0", "r0-0"]
    )
    assert (kept["lost_ms"], refused["lost_ms"]) == (0.0, pytest.approx(full_ms))
    assert refused["cost_ms"] == pytest.approx(kept["cost_ms"] + full_ms)
    assert refused["service_ms"] == pytest.approx(kept["service_ms"])
