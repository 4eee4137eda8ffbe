"""A lone request, one of several, and one on one worker cost the same."""

from __future__ import annotations

from random import Random

import msgspec
import numpy as np
import pytest

from controllers.candidates import Candidates
from controllers.costs import Costs
from controllers.loads import steady_of
from controllers.placement_types import Query
from controllers.ranking import Ranker
from tests.placement_rig import BLOCK, Fleet, load

NUM_WORKERS = 5


def prompt(number: int, num_blocks: int) -> list[int]:
    return [number * 100_000 + at for at in range(num_blocks)]


def busy_fleet() -> Fleet:
    """Queues, decodes, others' work, full caches, host blocks, slow workers, two ranks."""
    fleet = Fleet(NUM_WORKERS, max_running=3)
    for number in range(9):
        query = fleet.query(
            prompt(number, 40 + 30 * number), pinned=fleet.workers[number % 4], rank=number % 2
        )
        fleet.choose(query)
        if number % 3 == 0:
            fleet.placement.first_token(query.request_id, fleet.now)
    waiting = msgspec.structs.replace(
        load(used=9_900, active=4, queued=2, tokens=9_000), queued_by_rank={1: (2, 9_000)}
    )
    fleet.now += 1.0
    fleet.placement.on_load("r1-0", waiting, fleet.now)
    fleet.store("r2-0", prompt(20, 64), "host")
    fleet.store("r3-0", prompt(21, 32))
    for row, speed in enumerate([1.0, 1.5, 1.0, 0.5, 1.0]):
        fleet.placement._books.set_speed(row, speed)
    return fleet


def queries_of(fleet: Fleet) -> list[Query]:
    shapes = [(20, 64), (20, 90), (21, 32), (22, 5), (23, 900)]
    queries = [fleet.query(prompt(*shape), rank=rank) for rank in (0, 1) for shape in shapes]
    full_hit = msgspec.structs.replace(queries[2], num_tokens=32 * BLOCK)
    return [*queries, full_hit]


def found_of(fleet: Fleet, ranker: Ranker, queries: list[Query]) -> list[Candidates]:
    return [ranker.find(query, fleet.table, fleet.now, ()) for query in queries]


def assert_close(ours: Costs, expected: Costs) -> None:
    for name, values, wanted in zip(Costs._fields, ours, expected, strict=True):
        assert np.asarray(values).tolist() == pytest.approx(np.asarray(wanted).tolist()), name


def test_one_alone_costs_what_it_costs_among_others_and_on_each_worker() -> None:
    fleet = busy_fleet()
    ranker, queries = fleet.placement._placing.ranker, queries_of(fleet)
    found = found_of(fleet, ranker, queries)
    prices = ranker.price(queries, found, BLOCK, fleet.now)
    for i, (query, own) in enumerate(zip(queries, found, strict=True)):
        alone = ranker.price_one(query, own, BLOCK, fleet.now)
        assert_close(prices.of(i), alone)
        for row in range(NUM_WORKERS):
            assert ranker.service_at(row, query, own, BLOCK) == alone.service_at(row)
    assert np.ptp(alone.cost_ms) > 0.0


def test_they_follow_the_books() -> None:
    fleet = busy_fleet()
    ranker, queries = fleet.placement._placing.ranker, queries_of(fleet)
    found = found_of(fleet, ranker, queries)
    prices = ranker.price(queries, found, BLOCK, fleet.now)
    before = prices.of(4).cost_ms.tolist()
    fleet.choose(fleet.query(prompt(30, 300), pinned="r4-0"))
    assert prices.of(4).cost_ms.tolist() == before
    prices.books_changed()
    anew = ranker.price(queries, found, BLOCK, fleet.now)
    for i in range(len(queries)):
        assert_close(prices.of(i), anew.of(i))
    assert prices.of(4).cost_ms[4] > before[4]
    assert prices.of(4).cost_ms[:4].tolist() == before[:4]


def test_promised_blocks_are_no_room() -> None:
    fleet = Fleet(2)
    ranker = fleet.placement._placing.ranker
    queries = [fleet.query(prompt(1, 200)), fleet.query(prompt(2, 200))]
    fleet.choose(fleet.query(prompt(3, 100), pinned="r0-0"))
    prices = ranker.price(queries, found_of(fleet, ranker, queries), BLOCK, fleet.now)
    assert prices.of(0).room_ms.tolist() == [0.0, 0.0]
    prices.promise(0, 9_900.0)
    assert prices.of(0).room_ms[0] > 0.0
    assert prices.of(0).room_ms[1] == 0.0


def test_the_best_of_its_candidates() -> None:
    fleet = busy_fleet()
    ranker, queries = fleet.placement._placing.ranker, queries_of(fleet)
    found = [
        ranker.find(query, fleet.table, fleet.now, fleet.workers[2:4] if i % 2 else ())
        for i, query in enumerate(queries)
    ]
    prices = ranker.price(queries, found, BLOCK, fleet.now)
    best = prices.at_best()
    for i, own in enumerate(found):
        costs = prices.of(i)
        ttft_ms = costs.start_ms + costs.service_ms
        row = own.rows[ttft_ms[own.rows].argmin()]
        assert best.ttft_ms[i] == ttft_ms[row]
        assert best.service_ms[i] == costs.service_ms[row]
        assert best.uncached_tokens[i] == costs.uncached_tokens[own.rows].min()


def test_the_best_of_several_ranks() -> None:
    fleet = busy_fleet()
    ranker = fleet.placement._placing.ranker
    queries = [fleet.query(prompt(40 + i, 20 * i), rank=i % 2) for i in range(1, 6)]
    prices = ranker.price(queries, found_of(fleet, ranker, queries), BLOCK, fleet.now)
    best = prices.at_best()
    for i in range(len(queries)):
        costs = prices.of(i)
        ttft_ms = costs.start_ms + costs.service_ms
        assert best.ttft_ms[i] == ttft_ms.min()
        assert best.service_ms[i] == costs.service_ms[ttft_ms.argmin()]


def test_who_is_tied_to_a_worker() -> None:
    fleet = Fleet(4)
    ranker = fleet.placement._placing.ranker
    for worker in fleet.workers:
        fleet.store(worker, prompt(1, 200))
    fleet.store("r2-0", prompt(2, 200))
    queries = [fleet.query(prompt(number, 300)) for number in (1, 2, 3)]
    queries.append(fleet.query(prompt(4, 300), pinned="r1-0"))
    prices = ranker.price(queries, found_of(fleet, ranker, queries), BLOCK, fleet.now)
    best = prices.at_best()  # cached everywhere, on one, nowhere; pinned
    assert best.is_tied.tolist() == [False, True, False, True]
    assert best.has_room
    prices.promise(2, 9_900.0)
    assert not prices.at_best().has_room


def test_what_is_kept_of_loads_is_what_would_be_worked_out_anew() -> None:
    fleet = busy_fleet()
    ledger, rng = fleet.placement._ledger, Random(0)
    for step in range(60):
        name, worker = f"step {step}", rng.choice(fleet.workers)
        fleet.now += rng.choice([0.0, 0.3])
        if step % 5 == 0:
            fleet.placement.on_load(worker, load(used=rng.randrange(9_000), tokens=50), fleet.now)
        elif step % 13 == 0:
            fleet.placement.forget(worker)
            fleet.placement.set_workers(dict.fromkeys(fleet.workers, 10_000))
        fleet.choose(fleet.query(prompt(step, rng.randrange(1, 99)), request_id=name))
        if step % 3:
            fleet.placement.first_token(name, fleet.now)
        if step % 7 == 0:
            fleet.placement.release(name, fleet.now, 10)
        kept = ledger.steady_loads.of_all(ledger.reference_blocks)
        anew = steady_of(ledger.books.entries, ledger.model, ledger.reference_blocks)
        assert np.array_equal(np.array(kept), np.array(anew))
        for row in range(NUM_WORKERS):
            own = ledger.steady_loads.at(row, ledger.reference_blocks)
            assert list(own) == np.array(anew)[:, row].tolist()
