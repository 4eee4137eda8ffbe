from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from controllers.cost_model import CostModel
from controllers.errors import NotReady
from controllers.events import Cleared, Iteration
from controllers.placement import Placed, Placement
from tests.placement_rig import BLOCK, NUM_BLOCKS, Fleet, load

numbers = random.Random(7)


def blocks(count: int) -> list[int]:
    """Blocks that nobody has seen."""
    return [numbers.getrandbits(64) for _ in range(count)]


def laptop() -> CostModel:
    """A curve fitted to 3 ms per token and 40 ms per decode step."""
    rng, model = random.Random(0), CostModel(512)
    for _ in range(200):
        new = rng.choice([0, rng.randint(1, 512)])
        model.observe("w", Iteration(new, 4, 10, 3.0 * new + 40.0 + rng.random()), NUM_BLOCKS)
    return model


def books_of(placement: Placement) -> dict[str, Any]:
    books = placement._books
    return {
        name: getattr(books, name).tolist()
        for name in ("prefill_tokens", "num_unstarted", "num_requests", "own_blocks")
    }


def state_of(placement: Placement) -> dict[str, Any]:
    return {
        **books_of(placement),
        "prefill_end_ms": placement._books.prefill_end_ms.tolist(),
        "booked_ms": placement._books.booked_ms.tolist(),
        "num_reserved": placement.num_reserved,
        "num_predicted": len(placement._placing.predictions),
    }


def zeros(num_workers: int) -> dict[str, Any]:
    names = ("prefill_tokens", "num_unstarted", "num_requests", "own_blocks")
    return {name: [0.0] * num_workers for name in names}


def test_the_worker_with_the_prefix_takes_the_next_turn() -> None:
    fleet = Fleet(4)
    turn = blocks(100)
    fleet.store("r2-0", turn)
    fleet.store("r1-0", turn[:40])
    placed = fleet.choose(fleet.query(turn + blocks(3)))
    assert placed == Placed(
        worker="r2-0",
        reason="overlap",
        predicted_cached_tokens=100 * BLOCK,
        best_cached_tokens=100 * BLOCK,
        predicted_ttft_ms=pytest.approx(10.0 + 200.0 * 103 / 8192),
        num_candidates=4,
        predicted_service_ms=pytest.approx(10.0 + 200.0 * 103 / 8192),
    )


def test_a_busy_worker_is_left_for_an_idle_one_when_that_is_sooner() -> None:
    fleet = Fleet(2)
    turn = blocks(10)
    fleet.store("r0-0", turn)
    fleet.choose(fleet.query(blocks(2000), pinned="r0-0"))
    placed = fleet.choose(fleet.query(turn + blocks(1)))
    assert (placed.worker, placed.reason) == ("r1-0", "load")
    assert (placed.predicted_cached_tokens, placed.best_cached_tokens) == (0, 10 * BLOCK)


def test_it_waits_for_a_busy_worker_when_that_is_sooner() -> None:
    fleet = Fleet(2)
    turn = blocks(1000)
    fleet.store("r0-0", turn)
    fleet.choose(fleet.query(blocks(50), pinned="r0-0"))
    placed = fleet.choose(fleet.query(turn + blocks(1)))
    assert (placed.worker, placed.reason) == ("r0-0", "overlap")


def test_reasons_without_overlap() -> None:
    fleet = Fleet(2)
    assert fleet.choose(fleet.query(blocks(4))).reason == "cold"
    fleet.store("r0-0", blocks(4))
    assert fleet.choose(fleet.query(blocks(4))).reason == "load"
    fleet.lose("r0-0")
    fleet.lose("r1-0")
    assert fleet.choose(fleet.query(blocks(4))).reason == "stale"


def test_prompts_shorter_than_a_block() -> None:
    fleet = Fleet(2)
    placed = fleet.choose(fleet.query([]))
    assert (placed.reason, placed.best_cached_tokens) == ("cold", 0)
    fleet = Fleet(2, is_known=False)
    assert fleet.choose(fleet.query([])).reason == "stale"


def test_a_pinned_worker_takes_it_while_it_is_a_candidate() -> None:
    fleet = Fleet(3)
    turn = blocks(50)
    fleet.store("r0-0", turn)
    assert fleet.choose(fleet.query(turn, pinned="r2-0")).reason == "pinned"
    placed = fleet.choose(fleet.query(turn, pinned="r2-0"), exclude={"r2-0"})
    assert (placed.worker, placed.reason) == ("r0-0", "overlap")
    assert fleet.choose(fleet.query(turn, pinned="unknown")).reason == "overlap"


def test_excluded_workers_are_no_candidates() -> None:
    fleet = Fleet(3)
    turn = blocks(50)
    fleet.store("r0-0", turn)
    placed = fleet.choose(fleet.query(turn), exclude={"r0-0", "nobody"})
    assert placed.worker in {"r1-0", "r2-0"}
    assert (placed.num_candidates, placed.best_cached_tokens) == (2, 0)


def test_with_no_worker_left_nothing_is_reserved() -> None:
    fleet = Fleet(2)
    fleet.choose(fleet.query(blocks(3)))
    before = state_of(fleet.placement)
    with pytest.raises(NotReady, match="none of 2 workers can take the request"):
        fleet.choose(fleet.query(blocks(3)), exclude=set(fleet.workers))
    assert state_of(fleet.placement) == before
    with pytest.raises(NotReady, match="none of 0 workers"):
        Fleet(0).choose(fleet.query(blocks(3)))


@pytest.mark.parametrize("seed", range(20))
def test_a_ten_round_chat_stays_on_its_worker(seed: int) -> None:
    for model in (None, laptop()):
        fleet = Fleet(2, seed=seed, model=model)
        chat, workers, reasons = blocks(3), [], []
        for _ in range(10):
            placed = fleet.run(chat)
            workers.append(placed.worker)
            reasons.append(placed.reason)
            chat = chat + blocks(2)
        assert workers == workers[:1] * 10
        assert reasons == ["cold"] + ["overlap"] * 9


@pytest.mark.parametrize("seed", range(10))
def test_misses_spread_over_an_idle_fleet(seed: int) -> None:
    fleet = Fleet(4, seed=seed)
    counts = Counter(fleet.run(blocks(numbers.randint(1, 30))).worker for _ in range(40))
    assert min(counts[w] for w in fleet.workers) >= 5


def test_misses_spread_over_workers_that_seem_a_little_faster_or_slower() -> None:
    fleet = Fleet(4)
    for row, speed in enumerate([0.82, 1.0, 0.9, 1.05]):
        fleet.placement._books.set_speed(row, speed)
    counts = Counter(fleet.run(blocks(10)).worker for _ in range(40))
    assert min(counts[w] for w in fleet.workers) >= 5


def test_a_busy_worker_takes_no_misses() -> None:
    fleet = Fleet(4)
    fleet.choose(fleet.query(blocks(9000), pinned="r3-0"))
    counts = Counter(fleet.run(blocks(10), pause_s=0.01).worker for _ in range(40))
    assert counts["r3-0"] == 0
    assert min(counts[f"r{i}-0"] for i in range(3)) >= 5


@pytest.mark.parametrize("model", [None, laptop()], ids=["gpu", "laptop"])
def test_a_shared_prompt_gets_copies_on_an_idle_fleet(model: CostModel | None) -> None:
    fleet = Fleet(4, model=model)
    system = blocks(30)
    placed = [fleet.run(system + blocks(10), pause_s=2.0) for _ in range(60)]
    counts = Counter(p.worker for p in placed)
    assert min(counts[w] for w in fleet.workers) >= 5
    assert sum(p.predicted_cached_tokens == 0 for p in placed) == 4  # one computation per worker


def test_conversations_stay_where_their_own_turns_are() -> None:
    fleet = Fleet(4)
    system = blocks(30)
    chats = [system + blocks(5) for _ in range(24)]
    homes = [fleet.run(chat).worker for chat in chats]
    assert set(homes) == set(fleet.workers)
    for _ in range(5):
        chats = [chat + blocks(3) for chat in chats]
        placed = [fleet.run(chat) for chat in chats]
        assert [p.worker for p in placed] == homes
        assert {p.reason for p in placed} == {"overlap"}


def test_copies_can_be_switched_off() -> None:
    fleet = Fleet(4, prefix_copy_ratio=0.0)
    system = blocks(300)
    counts = Counter(fleet.run(system + blocks(10)).worker for _ in range(20))
    assert len(counts) == 1


def test_a_shared_prompt_under_load_spreads() -> None:
    fleet = Fleet(4)
    system = blocks(60)
    fleet.store("r0-0", system)
    counts = Counter(fleet.choose(fleet.query(system + blocks(20))).worker for _ in range(100))
    assert min(counts[w] for w in fleet.workers) >= 15


def test_siblings_follow_before_the_first_event_arrives() -> None:
    fleet = Fleet(4)
    document = blocks(1000)
    first = fleet.choose(fleet.query(document + blocks(1)))
    placed = [fleet.choose(fleet.query(document + blocks(1))) for _ in range(3)]
    assert {(p.worker, p.reason) for p in placed} == {(first.worker, "predicted")}
    assert {p.predicted_cached_tokens for p in placed} == {1000 * BLOCK}


@pytest.mark.parametrize("event", ["expiry", "epoch", "forgotten"])
def test_predictions_end(event: str) -> None:
    fleet = Fleet(2)
    prompt = blocks(100)
    query = fleet.query(prompt)
    worker = fleet.choose(query).worker
    fleet.placement.release(query.request_id, fleet.now)
    assert len(fleet.placement._placing.predictions) == 100
    if event == "expiry":
        fleet.now += 5.0
        fleet.placement.sweep(fleet.now)
    elif event == "epoch":
        fleet.start(worker)
    else:
        fleet.placement.forget(worker)
        fleet.placement.set_workers(dict.fromkeys(fleet.workers, NUM_BLOCKS))
    assert fleet.choose(fleet.query(prompt)).best_cached_tokens == 0


def test_predictions_continue_what_the_table_knows() -> None:
    fleet = Fleet(2)
    prompt = blocks(100)
    fleet.store("r1-0", prompt[:60])
    fleet.choose(fleet.query(prompt))
    explained = fleet.placement.explain(fleet.query(prompt), fleet.table, fleet.now)
    by_worker = {
        c["worker"]: (c["overlap_blocks"], c["predicted_blocks"]) for c in explained["candidates"]
    }
    assert by_worker == {"r0-0": (0, 0), "r1-0": (60, 100)}
    fleet.tell("r1-0", Cleared())
    explained = fleet.placement.explain(fleet.query(prompt), fleet.table, fleet.now)
    assert {c["predicted_blocks"] for c in explained["candidates"]} == {0}


def test_what_is_reserved_is_given_back() -> None:
    fleet = Fleet(2)
    queries = [fleet.query(blocks(numbers.randint(0, 50))) for _ in range(50)]
    for query in queries:
        fleet.choose(query)
    assert sum(books_of(fleet.placement)["num_requests"]) == 50
    assert fleet.placement.num_reserved == 50
    for i, query in enumerate(queries):
        fleet.now += 0.01
        if i % 2:
            fleet.placement.first_token(query.request_id, fleet.now)
        fleet.placement.release(query.request_id, fleet.now, 5)
    assert books_of(fleet.placement) == zeros(2)
    assert fleet.placement.num_reserved == 0
    assert (fleet.placement._books.prefill_end_ms <= fleet.now * 1000.0).all()


def test_releasing_and_first_tokens_are_idempotent() -> None:
    fleet = Fleet(2)
    query = fleet.query(blocks(10))
    fleet.choose(query)
    fleet.placement.first_token(query.request_id, fleet.now)
    before = state_of(fleet.placement)
    fleet.placement.first_token(query.request_id, fleet.now + 1)
    fleet.placement.first_token("unknown", fleet.now)
    fleet.placement.release("unknown", fleet.now, 5)
    assert state_of(fleet.placement) == before
    fleet.placement.release(query.request_id, fleet.now, 5)
    after = state_of(fleet.placement)
    fleet.placement.release(query.request_id, fleet.now + 1, 5)
    fleet.placement.first_token(query.request_id, fleet.now + 1)
    assert state_of(fleet.placement) == after
    assert books_of(fleet.placement) == zeros(2)


def test_a_second_attempt_moves_the_reservation() -> None:
    fleet = Fleet(2)
    query = fleet.query(blocks(10))
    first = fleet.choose(query)
    second = fleet.choose(query, exclude={first.worker})
    assert second.worker != first.worker
    row = fleet.workers.index(second.worker)
    assert books_of(fleet.placement)["num_requests"][row] == 1
    assert sum(books_of(fleet.placement)["num_requests"]) == 1
    assert fleet.placement.num_reserved == 1


def test_reservations_that_nobody_releases_end() -> None:
    fleet = Fleet(2, reservation_ttl_s=60.0)
    fleet.choose(fleet.query(blocks(10)))
    fleet.now += 30.0
    fleet.choose(fleet.query(blocks(10)))
    fleet.now += 30.0
    fleet.placement.sweep(fleet.now)
    assert (fleet.placement.num_reserved, fleet.placement.num_expired) == (1, 1)
    fleet.now += 1000.0
    fleet.placement.sweep(fleet.now)
    assert (fleet.placement.num_reserved, fleet.placement.num_expired) == (0, 2)
    assert books_of(fleet.placement) == zeros(2)


def test_a_worker_that_leaves_takes_its_reservations_along() -> None:
    fleet = Fleet(3)
    queries = [fleet.query(blocks(10), pinned=w) for w in fleet.workers]
    for query in queries:
        fleet.choose(query)
    fleet.placement.set_workers({"r0-0": NUM_BLOCKS, "r2-0": NUM_BLOCKS})
    assert fleet.placement.num_reserved == 2
    assert books_of(fleet.placement)["num_requests"] == [1.0, 1.0]
    before = state_of(fleet.placement)
    fleet.placement.first_token(queries[1].request_id, fleet.now)
    fleet.placement.release(queries[1].request_id, fleet.now, 5)
    assert state_of(fleet.placement) == before
    placed = fleet.choose(fleet.query(blocks(10), pinned="r1-0"))
    assert placed.worker in {"r0-0", "r2-0"}
    fleet.placement.set_workers(dict.fromkeys(fleet.workers, NUM_BLOCKS))
    assert books_of(fleet.placement)["num_requests"][2] == 0.0  # back as a new worker
    fleet.placement.forget("never there")


def test_the_backlog_is_set_right_at_every_first_token() -> None:
    fleet = Fleet(1)
    long, short = fleet.query(blocks(256)), fleet.query(blocks(32))
    fleet.choose(long)
    second = fleet.choose(short)
    assert second.predicted_ttft_ms > 210.0
    fleet.now += 5.0  # much later than expected
    fleet.placement.first_token(long.request_id, fleet.now)
    left_ms = fleet.placement._books.prefill_end_ms[0] - fleet.now * 1000.0
    assert 30.0 < left_ms < 60.0  # the short one, beside the long one's decode


def test_predicted_time_to_first_token_counts_the_queue() -> None:
    fleet = Fleet(1)
    alone = fleet.choose(fleet.query(blocks(256)))
    assert alone.predicted_ttft_ms == pytest.approx(
        10.0 + 200.0 * (256 * BLOCK + 7) / 8192, rel=0.1
    )
    behind = fleet.choose(fleet.query(blocks(256)))
    assert behind.predicted_ttft_ms > 1.8 * alone.predicted_ttft_ms


def test_blocks_in_lower_media_cost_their_way_back() -> None:
    fleet = Fleet(2, host_onboard_ms_per_block=0.5)
    turn = blocks(100)
    fleet.store("r0-0", turn, medium="host")
    fleet.store("r1-0", turn)
    explained = fleet.placement.explain(fleet.query(turn), fleet.table, fleet.now)
    service = {c["worker"]: c["service_ms"] for c in explained["candidates"]}
    assert service["r0-0"] == pytest.approx(service["r1-0"] + 50.0)
    assert explained["worker"] == "r1-0"


def test_explaining_reserves_nothing_and_says_what_choosing_does() -> None:
    fleet = Fleet(3)
    turn = blocks(20)
    fleet.store("r1-0", turn)
    before = state_of(fleet.placement)
    explained = fleet.placement.explain(fleet.query(turn), fleet.table, fleet.now)
    assert state_of(fleet.placement) == before
    placed = fleet.choose(fleet.query(turn))
    candidates = explained.pop("candidates")
    assert explained == {
        "worker": placed.worker,
        "reason": placed.reason,
        "predicted_cached_tokens": placed.predicted_cached_tokens,
        "best_cached_tokens": placed.best_cached_tokens,
        "predicted_ttft_ms": placed.predicted_ttft_ms,
        "num_candidates": placed.num_candidates,
        "predicted_service_ms": placed.predicted_service_ms,
    }
    assert candidates[0] == {
        "worker": "r1-0",
        "overlap_blocks": 20,
        "predicted_blocks": 20,
        "is_stale": False,
        "num_requests": 0.0,
        "busy": 0.0,
        "backlog_ms": 0.0,
        "start_ms": 0.0,
        "service_ms": placed.predicted_ttft_ms,
        "lost_ms": 0.0,
        "cost_ms": pytest.approx(candidates[0]["cost_ms"]),
    }
    costs = [c["cost_ms"] for c in candidates]
    assert costs == sorted(costs)
    assert len(candidates) == 3


@pytest.mark.parametrize("policy", ["random", "round_robin", "least_requests"])
def test_policies_to_compare_with_keep_the_same_books(policy: str) -> None:
    fleet = Fleet(4, policy=policy)
    turn = blocks(20)
    fleet.store("r0-0", turn)
    placed = [fleet.choose(fleet.query(turn)) for _ in range(40)]
    assert {p.reason for p in placed} == {"load" if policy == "least_requests" else "policy"}
    assert {p.best_cached_tokens for p in placed} == {20 * BLOCK}
    counts = Counter(p.worker for p in placed)
    assert min(counts[w] for w in fleet.workers) >= (3 if policy == "random" else 10)
    assert sum(books_of(fleet.placement)["num_requests"]) == 40


def test_preferences_change_without_losing_reservations() -> None:
    fleet = Fleet(2)
    query = fleet.query(blocks(10))
    fleet.choose(query)
    fleet.placement.configure(Fleet(0, policy="round_robin").settings)
    assert fleet.placement.num_reserved == 1
    assert fleet.choose(fleet.query(blocks(10))).reason == "policy"
    fleet.placement.release(query.request_id, fleet.now)
    assert fleet.placement.num_reserved == 1


def test_routers_that_know_nothing_agree() -> None:
    prompts = [blocks(10) for _ in range(200)]
    one, two = Fleet(4, seed=1, is_known=False), Fleet(4, seed=2, is_known=False)
    first = [fleet.choose(fleet.query(p)).worker for p in prompts for fleet in (one,)]
    second = [fleet.choose(fleet.query(p)).worker for p in prompts for fleet in (two,)]
    assert first == second
    counts = Counter(first)
    assert min(counts[w] for w in one.workers) >= 35


def test_in_the_dark_a_chat_stays_and_a_shared_prompt_spreads() -> None:
    fleet = Fleet(4, is_known=False)
    system = blocks(30)

    def run(prompt: list[int]) -> Placed:
        query = fleet.query(prompt)
        placed = fleet.choose(query)
        fleet.now += 20.0  # beyond every prediction
        fleet.placement.release(query.request_id, fleet.now)
        return placed

    chats = [system + blocks(3) for _ in range(40)]
    homes = [run(chat).worker for chat in chats]
    assert max(Counter(homes).values()) <= 18  # about 1.25 of the mean and some slack
    for _ in range(3):
        chats = [chat + blocks(2) for chat in chats]
        placed = [run(chat) for chat in chats]
        assert [p.worker for p in placed] == homes
        assert {p.reason for p in placed} == {"stale"}


def test_a_blind_router_heals_when_the_events_come() -> None:
    fleet = Fleet(3, is_known=False)
    turn = blocks(20)
    assert fleet.choose(fleet.query(turn)).reason == "stale"
    fleet.now += 60.0
    for worker in fleet.workers:
        fleet.start(worker)
    fleet.store("r1-0", turn)
    placed = fleet.choose(fleet.query(turn))
    assert (placed.worker, placed.reason) == ("r1-0", "overlap")


def test_a_stale_worker_has_only_what_is_predicted() -> None:
    fleet = Fleet(2)
    turn = blocks(50)
    fleet.store("r0-0", turn)
    fleet.lose("r0-0")
    explained = fleet.placement.explain(fleet.query(turn), fleet.table, fleet.now)
    by_worker = {c["worker"]: (c["overlap_blocks"], c["is_stale"]) for c in explained["candidates"]}
    assert by_worker == {"r0-0": (0, True), "r1-0": (0, False)}
    fleet.choose(fleet.query(turn, pinned="r0-0"))
    fleet.now += 1.0
    placed = fleet.choose(fleet.query(turn + blocks(1), expected_output_tokens=1))
    assert placed.predicted_cached_tokens in {0, 50 * BLOCK}
    explained = fleet.placement.explain(fleet.query(turn), fleet.table, fleet.now)
    assert {c["predicted_blocks"] for c in explained["candidates"] if c["is_stale"]} == {50}


def test_a_full_worker_is_waited_for_only_if_that_is_sooner() -> None:
    fleet = Fleet(2)
    turn = blocks(100)
    fleet.store("r0-0", turn)
    fleet.placement.on_load("r0-0", load(used=NUM_BLOCKS - 10, active=1), fleet.now)
    placed = fleet.choose(fleet.query(turn + blocks(5)))
    assert (placed.worker, placed.reason) == ("r1-0", "load")


def test_a_slow_worker_does_not_drown_in_what_it_has_cached() -> None:
    shares = {}
    for theta in (0.0, 1.0):
        fleet = Fleet(2, theta=theta)
        fleet.placement._books.set_speed(0, 3.0)
        workers = []
        for _ in range(500):
            document = blocks(60)
            fleet.store("r0-0", document)  # about 40 ms there, 60 ms on the fast one without it
            workers.append(fleet.run(document + blocks(5), pause_s=0.005).worker)
        shares[theta] = workers[250:].count("r0-0") / 250  # after a time constant of the price
    assert shares[0.0] == 1.0
    assert 0.2 < shares[1.0] < 0.8


def test_the_load_of_other_routers_is_a_running_mean() -> None:
    fleet = Fleet(2)
    for second in range(3):
        fleet.placement.on_load("r1-0", load(), fleet.now + second)
        fleet.placement.on_load("r0-0", load(), fleet.now + second)
    fleet.placement.on_load("r0-0", load(active=10, tokens=5000), fleet.now + 3)
    books = fleet.placement._books
    assert books.others_requests.tolist() == pytest.approx([1.0, 0.0])
    assert books.others_prefill_tokens.tolist() == pytest.approx([500.0, 0.0])
    for second in range(4, 60):
        fleet.placement.on_load("r0-0", load(active=10, tokens=5000), fleet.now + second)
    assert books.others_requests[0] == pytest.approx(10.0, rel=0.01)
    assert fleet.choose(fleet.query(blocks(5))).worker == "r1-0"


def test_own_requests_are_not_counted_twice() -> None:
    fleet = Fleet(1)
    for _ in range(3):
        fleet.choose(fleet.query(blocks(10)))
    tokens = int(fleet.placement._books.prefill_tokens[0])
    for second in range(100):
        report = load(active=1, queued=2, tokens=tokens, used=33)
        fleet.placement.on_load("r0-0", report, fleet.now + second)
    assert fleet.placement._books.others_requests[0] == 0.0
    assert fleet.placement._books.others_prefill_tokens[0] == 0.0
    assert fleet.placement._books.active_blocks().tolist() == [33.0]


def test_timings_in_load_records_teach_the_curve_and_the_speeds() -> None:
    fleet = Fleet(2)
    rng = random.Random(0)
    for second in range(400):
        for worker, slow in (("r0-0", 1.0), ("r1-0", 3.0)):
            new = rng.randint(1, 8192)
            ms = slow * (16.5 + 124.4 * new / 8192)
            report = load()
            report = type(report)(
                **{f: getattr(report, f) for f in report.__struct_fields__ if f != "iterations"},
                iterations=[Iteration(new, 0, 0, ms), Iteration(new, 0, 0, float("nan"))],
            )
            fleet.placement.on_load(worker, report, fleet.now + second)
    fleet.now += 400.0
    assert fleet.placement.num_bad_figures == 800
    explained = fleet.placement.explain(fleet.query(blocks(128)), fleet.table, fleet.now)
    service = {c["worker"]: c["service_ms"] for c in explained["candidates"]}
    assert service["r0-0"] == pytest.approx(78.7, rel=0.15)
    assert service["r1-0"] == pytest.approx(236.1, rel=0.15)


def test_loads_of_unknown_workers_are_ignored() -> None:
    fleet = Fleet(1)
    before = state_of(fleet.placement)
    fleet.placement.on_load("gone", load(active=5), fleet.now)
    assert state_of(fleet.placement) == before


def test_the_expected_output_follows_the_request_type() -> None:
    fleet = Fleet(1)
    for _ in range(20):
        for request_type, tokens in (("oneoff", 1), ("agent", 1000)):
            query = fleet.query(blocks(1), request_type=request_type)
            fleet.choose(query)
            fleet.placement.first_token(query.request_id, fleet.now)
            fleet.now += 1.0
            fleet.placement.release(query.request_id, fleet.now, tokens)
    completions = fleet.placement._ledger.completions
    assert completions.expected_tokens("agent") > 900
    assert completions.expected_tokens("oneoff") < 60
    assert 400 < completions.expected_tokens("new type") < 600
    assert 900.0 < completions.held_ms < 1200.0


def test_decisions_repeat_with_the_same_seed() -> None:
    prompts = [blocks(numbers.randint(1, 20)) for _ in range(50)]
    runs = []
    for _ in range(2):
        fleet = Fleet(4, seed=3)
        runs.append([fleet.run(prompt) for prompt in prompts])
    assert runs[0] == runs[1]


def test_costs_stay_finite_on_a_worker_without_room() -> None:
    fleet = Fleet(2)
    fleet.placement.set_workers({"r0-0": 1, "r1-0": 0})
    explained = fleet.placement.explain(fleet.query(blocks(500)), fleet.table, fleet.now)
    assert all(np.isfinite(c["cost_ms"]) for c in explained["candidates"])


def test_a_burst_of_one_prompt_does_not_wait_for_places_in_one_batch() -> None:
    fleet = Fleet(4, model=laptop(), max_running=16)
    for _ in range(30):  # so that the time a request is held is known
        fleet.run(blocks(64), pause_s=2.0)
    hashes = blocks(64)
    burst = Counter(fleet.choose(fleet.query(hashes)).worker for _ in range(50))
    assert len(burst) >= 2
    assert max(burst.values()) <= 2 * 16


def busy_choices(num_small: int, num_lost: int) -> Counter[str]:
    """Where new prompts go that cost the same on two busy workers, after `num_lost` prompts that no
    worker keeps were asked for twice. The first worker has `num_small` blocks."""
    chosen: Counter[str] = Counter()
    for seed in range(20):
        fleet = Fleet(2, seed=seed)
        sizes = {"r0-0": num_small, "r1-0": 8000}
        fleet.placement.set_workers(sizes)
        for prompt in [blocks(500) for _ in range(num_lost)] * 2:
            query = fleet.query(prompt)
            fleet.choose(query)
            fleet.placement.release(query.request_id, fleet.now)
            fleet.now += 10.0  # what was predicted is over
        for _ in sizes:  # one on each: nobody is idle
            fleet.choose(fleet.query(blocks(10)))
        chosen[fleet.choose(fleet.query(blocks(300))).worker] += 1
    return chosen


def test_new_prompts_go_where_the_cache_is_larger_if_smaller_ones_lose_blocks() -> None:
    assert busy_choices(num_small=2000, num_lost=8) == {"r1-0": 20}
    assert min(busy_choices(num_small=8000, num_lost=8).values()) > 2
    assert min(busy_choices(num_small=2000, num_lost=0).values()) > 2
