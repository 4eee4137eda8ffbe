from __future__ import annotations

import pytest

from controllers.sliding import SlidingSums


def test_what_is_older_than_the_window_is_forgotten() -> None:
    sums = SlidingSums(10.0)
    for now in range(100, 105):
        sums.add("a", 2.0, float(now))
    sums.add("b", 1.0, 104.0)
    assert (sums.total("a", 104.0), sums.total("b", 104.0)) == (10.0, 1.0)
    assert sums.total("a", 111.0) == 6.0
    assert (sums.total("a", 114.0), sums.names(114.0)) == (0.0, set())


def test_a_steady_rate_is_told_as_it_is_at_any_moment() -> None:
    sums = SlidingSums(10.0)
    now = 0.0
    for _ in range(1000):
        now += 0.05
        sums.add("a", 1.0, now)
    for _ in range(37):
        now += 0.05
        sums.add("a", 1.0, now)
        assert sums.per_s("a", now) == pytest.approx(20.0, rel=0.01)


def test_names_without_an_amount_are_none() -> None:
    sums = SlidingSums(10.0)
    sums.add("a", 0.0, 1.0)
    assert sums.names(1.0) == set()
    assert sums.total("never", 1.0) == 0.0
