from __future__ import annotations

from controllers.places import WINDOW_S, Places


def run(places: Places, rank: int, count: int, now: float = 0.0) -> None:
    for _ in range(count):
        places.came(rank, now)
        places.started(rank)


def test_one_rank_has_all_places() -> None:
    places = Places(10, 0.5)
    run(places, 2, 7)
    assert places.num_free(2, 0.0) == 3
    run(places, 2, 3)
    assert places.num_free(2, 0.0) == 0


def test_one_more_than_a_better_rank_has_is_kept_for_it() -> None:
    places = Places(16, 0.5)
    run(places, 0, 2)
    assert places.num_free(0, 0.0) == 14
    assert places.num_free(2, 0.0) == 13  # 16 - (2 + 1)
    run(places, 2, 13)
    assert (places.num_free(2, 0.0), places.num_free(0, 0.0)) == (0, 1)


def test_what_it_had_in_the_last_minute_is_half_forgotten() -> None:
    places = Places(16, 0.5)
    run(places, 0, 6)
    for _ in range(6):
        places.left(0, True, 1.0)
    assert places.num_free(1, 1.0) == 13
    run(places, 0, 2, now=1.0)
    assert places.num_free(1, 1.0) == 12  # 16 - (2 + 6) / 2


def test_the_share_bounds_what_is_kept() -> None:
    places = Places(16, 0.5)
    run(places, 0, 7)
    assert places.num_free(1, 0.0) == 8
    run(places, 0, 3)
    assert places.num_free(1, 0.0) == 6


def test_what_worse_ranks_have_counts_for_those_between() -> None:
    places = Places(10, 0.5)
    run(places, 0, 1)
    run(places, 1, 1)
    assert (places.num_free(1, 0.0), places.num_free(2, 0.0)) == (7, 6)  # 8 - 1, 10 - 2 - 2
    run(places, 2, 6)
    assert (places.num_free(0, 0.0), places.num_free(1, 0.0), places.num_free(2, 0.0)) == (2, 1, 0)


def test_one_of_a_worse_rank_may_always_run() -> None:
    places = Places(1, 1.0)
    places.came(0, 0.0)
    places.left(0, False, 0.0)
    assert places.num_free(1, 0.0) == 1


def test_a_need_is_forgotten_after_a_while_but_not_what_runs() -> None:
    places = Places(10, 0.5)
    run(places, 0, 1)
    assert places.num_free(1, 10 * WINDOW_S) == 8
    places.left(0, True, 10 * WINDOW_S)
    assert places.num_free(1, 11.5 * WINDOW_S) == 9
    assert places.num_free(1, 12.5 * WINDOW_S) == 10
