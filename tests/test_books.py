from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from controllers.books import Books
from controllers.events import Load
from tests.placement_rig import load


def fleet_of(num_workers: int) -> Books:
    """Every worker has reported the same: 400 of 1,000 blocks, 8 requests, 3,000 tokens."""
    books = Books()
    for i in range(num_workers):
        books.add(f"w{i}")
        books.report(i, load(used=400, total=1000, active=6, queued=2, tokens=3000), 1000.0)
    return books


def seen(books: Books, row: int) -> tuple[float, ...]:
    return (
        float(books.active_blocks()[row]),
        float(books.capacity_blocks[row]),
        float(books.others_requests[row]),
        float(books.others_prefill_tokens[row]),
    )


def test_a_first_report_is_taken_whole() -> None:
    books = fleet_of(2)
    assert [seen(books, i) for i in range(2)] == [(400.0, 1000.0, 8.0, 3000.0)] * 2
    assert books.num_bad_figures == 0


BAD: list[tuple[dict[str, Any], int]] = [
    ({"used_blocks": {"gpu": -2}}, 1),
    ({"used_blocks": {"gpu": 1001}}, 1),
    ({"used_blocks": {}}, 1),
    ({"used_blocks": {"gpu": float("nan")}}, 1),
    ({"used_blocks": {"gpu": None}}, 1),
    ({"total_blocks": {"gpu": 0}}, 1),
    ({"total_blocks": {"gpu": -5}}, 1),
    ({"total_blocks": {}}, 1),
    ({"num_active": -1}, 1),
    ({"num_queued": -1}, 1),
    ({"num_active": 10**12}, 1),
    ({"num_active": True}, 1),
    ({"queued_prefill_tokens": -1}, 1),
    (
        {
            "used_blocks": {"gpu": -2},
            "total_blocks": {},
            "num_active": -1,
            "queued_prefill_tokens": -7,
        },
        4,
    ),
]


@pytest.mark.parametrize(("bad", "num_bad"), BAD)
def test_a_worker_with_impossible_figures_looks_like_the_others(
    bad: dict[str, Any], num_bad: int
) -> None:
    books = fleet_of(4)
    good = load(used=400, total=1000, active=6, queued=2, tokens=3000)
    for second in range(2, 30):
        for row in range(4):
            report = msgspec.structs.replace(good, **bad) if row == 2 else good
            books.report(row, report, second * 1000.0)
    assert seen(books, 2) == pytest.approx(seen(books, 0))
    assert seen(books, 0) == pytest.approx((400.0, 1000.0, 8.0, 3000.0))
    assert books.num_bad_figures == 28 * num_bad


def test_a_new_worker_with_impossible_figures_looks_like_the_others() -> None:
    books = fleet_of(3)
    books.add("new")
    bad = Load(
        num_active=-1,
        num_queued=0,
        queued_prefill_tokens=-1,
        decode_tokens=0,
        used_blocks={"gpu": -2},
        total_blocks={"gpu": 0},
    )
    books.report(3, bad, 5000.0)
    assert seen(books, 3) == seen(books, 0)


def test_a_lonely_worker_with_impossible_figures_keeps_what_is_known() -> None:
    books = Books()
    books.add("w")
    books.book(0, 100.0, 4, 20.0, 1000.0)
    books.report(0, load(used=-2, total=0, active=-1, tokens=-1), 1000.0)
    assert seen(books, 0) == (4.0, math.inf, 0.0, 0.0)
    assert books.num_bad_figures == 4


def test_own_changes_since_the_report_count() -> None:
    books = fleet_of(1)
    books.book(0, 100.0, 7, 20.0, 2000.0)
    assert books.active_blocks().tolist() == [407.0]
    books.report(0, load(used=405, total=1000), 2000.0)
    assert books.active_blocks().tolist() == [405.0]
    books.start(0, 100.0)
    books.end(0, 7)
    assert books.active_blocks().tolist() == [398.0]


def test_booked_work_fades_and_backlog_ends() -> None:
    books = Books()
    books.add("a")
    books.add("b")
    books.book(0, 100.0, 4, 2000.0, 1000.0)
    books.book(0, 100.0, 4, 2000.0, 1000.0)
    assert books.prefill_end_ms.tolist() == [5000.0, 0.0]
    assert books.busy(1000.0).tolist() == pytest.approx([0.2, 0.0])
    assert books.busy(21_000.0).tolist() == pytest.approx([0.2 / math.e, 0.0])
    books.book(0, 100.0, 4, 1e6, 1000.0)
    assert books.busy(1000.0).tolist() == [0.95, 0.0]
    assert books.busy(0.0).tolist() == [0.95, 0.0]  # a clock that went back


def test_the_mean_of_others_moves_by_time_not_by_records() -> None:
    rare, often = fleet_of(1), fleet_of(1)
    rare.report(0, load(total=1000), 2000.0)
    for i in range(1, 11):
        often.report(0, load(total=1000), 1000.0 + 100.0 * i)
    assert rare.others_requests[0] == pytest.approx(0.9 * 8.0)
    assert often.others_requests[0] == pytest.approx(0.9 * 8.0)
    often.report(0, load(total=1000, active=50), 1500.0)  # out of order: no weight
    assert often.others_requests[0] == pytest.approx(0.9 * 8.0)


def test_rows_follow_workers_that_leave() -> None:
    books = fleet_of(3)
    books.book(2, 100.0, 7, 20.0, 2000.0)
    books.forget("w0")
    books.forget("w0")
    assert (books.workers, len(books)) == (["w1", "w2"], 2)
    assert [books.row(w) for w in ("w0", "w1", "w2")] == [None, 0, 1]
    assert ("w0" in books, "w2" in books) == (False, True)
    assert books.num_requests.tolist() == [0.0, 1.0]
    assert books.add("w2") == 1
    assert books.add("w0") == 2
    assert books.num_requests.tolist() == [0.0, 1.0, 0.0]
    assert np.isinf(books.capacity_blocks[2])


def test_caches_are_compared_with_the_largest_one() -> None:
    books = Books()
    for i, num_blocks in enumerate((1000, 1000, 4000)):
        books.add(f"w{i}")
        assert books.smaller is None  # its size is not known yet
        books.set_capacity(i, num_blocks)
    assert books.smaller is not None
    assert books.smaller.tolist() == [0.75, 0.75, 0.0]
    books.report(2, load(total=2000), 1000.0)
    assert books.smaller is not None
    assert books.smaller.tolist() == [0.5, 0.5, 0.0]
    books.forget("w2")
    assert books.smaller is None
