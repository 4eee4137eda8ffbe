"""Work of worse ranks: what it is, and that it keeps nobody of a better rank waiting or away."""

from __future__ import annotations

import zlib

import msgspec
import numpy as np
import pytest

from controllers.errors import Overloaded
from controllers.placement import Placed
from controllers.rank_book import PASSES_NONE, RankBook
from tests.placement_rig import Fleet, load

WORKERS = ["a", "b"]


def test_one_rank_passes_nothing() -> None:
    book = RankBook()
    book.book("a", 1, 500)
    assert book.passed_by(1, WORKERS) is PASSES_NONE
    assert book.passed_by(2, WORKERS) is PASSES_NONE


def test_own_work_is_exact_and_ends() -> None:
    book = RankBook()
    book.book("a", 1, 500)
    book.book("a", 2, 300)
    book.book("b", 2, 40)
    passed = book.passed_by(0, WORKERS)
    assert np.array_equal(passed.own_requests, [2, 1])
    assert np.array_equal(passed.own_tokens, [800, 40])
    assert np.array_equal(book.passed_by(1, WORKERS).own_tokens, [300, 40])
    book.book("a", 2, 300, -1)
    book.forget("b")
    assert book.passed_by(1, WORKERS) is PASSES_NONE


def test_of_others_a_running_mean_of_what_is_not_our_own() -> None:
    book = RankBook()
    book.book("a", 2, 1000)
    for second in range(100):
        book.report("a", {0: (9, 9), 2: (5, 5000)}, second * 1000.0)
    passed = book.passed_by(0, WORKERS)
    assert np.allclose(passed.others_requests, [4, 0], rtol=0.01)
    assert np.allclose(passed.others_tokens, [4000, 0], rtol=0.01)
    book.report("a", {}, 100_000.0)
    assert 3500 < np.max(book.passed_by(0, WORKERS).others_tokens) < 4000


def prompt_of(name: str, num_blocks: int = 936) -> list[int]:
    """Blocks of a prompt of its own."""
    return [zlib.crc32(name.encode()) * 10_000 + i for i in range(num_blocks)]


def choose(fleet: Fleet, name: str, rank: int, **fields: object) -> Placed:
    return fleet.choose(fleet.query(prompt_of(name), request_id=name, rank=rank, **fields))


def test_a_better_rank_does_not_wait_for_the_backlog_of_a_worse_one() -> None:
    fleet = Fleet(2)
    alone = choose(fleet, "first", 0).predicted_ttft_ms
    fleet.placement.release("first", fleet.now)
    for i in range(20):
        choose(fleet, f"batch{i}", 2)
    late = choose(fleet, "more batch", 2).predicted_ttft_ms
    soon = choose(fleet, "chat", 0).predicted_ttft_ms
    assert late > 5 * alone
    assert soon < 1.5 * alone


def test_nor_for_what_others_sent_of_a_worse_one() -> None:
    fleet = Fleet(2)
    alone = choose(fleet, "first", 0).predicted_ttft_ms
    fleet.placement.release("first", fleet.now)
    batch = msgspec.structs.replace(
        load(queued=20, tokens=600_000), queued_by_rank={2: (20, 600_000)}
    )
    for _ in range(30):
        fleet.now += 1.0
        for worker in fleet.workers:
            fleet.placement.on_load(worker, batch, fleet.now)
    assert choose(fleet, "chat", 0).predicted_ttft_ms < 1.5 * alone
    assert choose(fleet, "batch", 2).predicted_ttft_ms > 5 * alone


def test_what_cannot_be_in_time_anywhere_is_refused_at_once() -> None:
    fleet = Fleet(2)
    for i in range(20):
        choose(fleet, f"q{i}", 1)
    reserved = fleet.placement.num_reserved
    with pytest.raises(Overloaded, match="on the best of 2 workers; 2000 ms are allowed") as caught:
        choose(fleet, "late", 1, max_ttft_ms=2000.0)
    assert caught.value.retry_after_s > 1.0
    assert fleet.placement.num_reserved == reserved
    assert choose(fleet, "patient", 1, max_ttft_ms=60_000.0).worker in fleet.workers


def test_it_goes_where_it_can_be_in_time() -> None:
    fleet = Fleet(2)
    fleet.store("r0-0", prompt_of("again")[:-100])
    for i in range(4):
        choose(fleet, f"q{i}", 1, pinned="r0-0")
    choose(fleet, "other", 1, pinned="r1-0")
    late = choose(fleet, "again", 1, pinned="r0-0")
    fleet.placement.release("again", fleet.now)
    in_time = choose(fleet, "again", 1, pinned="r0-0", max_ttft_ms=late.predicted_ttft_ms - 1.0)
    assert (late.worker, in_time.worker) == ("r0-0", "r1-0")


def test_an_idle_worker_takes_it_whatever_is_predicted() -> None:
    fleet = Fleet(1)
    assert choose(fleet, "long", 0, max_ttft_ms=1.0).worker == "r0-0"
    with pytest.raises(Overloaded):
        choose(fleet, "next", 0, max_ttft_ms=1.0)
