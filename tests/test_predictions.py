from __future__ import annotations

from controllers.predictions import Predictions


def test_blocks_are_expected_until_they_expire() -> None:
    p = Predictions(5.0)
    p.add("a", 1, [1, 2, 3], 0, now=10.0)
    assert list(p.may_start_with(1)) == ["a"]
    assert p.extend("a", 1, [1, 2, 3, 4], 0, now=14.9) == 3
    assert p.extend("a", 1, [1, 2, 9], 0, now=14.9) == 2
    assert p.extend("a", 1, [1, 2, 3], 0, now=15.0) == 0
    p.sweep(15.0)
    assert (len(p), list(p.may_start_with(1))) == (0, [])
    assert (p._workers, p._first_to_workers, len(p._sent)) == ({}, {}, 0)


def test_they_continue_what_is_there() -> None:
    p = Predictions(5.0)
    p.add("a", 1, [1, 2, 3, 4], 2, now=0.0)
    assert list(p.may_start_with(1)) == []
    assert p.extend("a", 1, [1, 2, 3, 4], 0, now=1.0) == 0
    assert p.extend("a", 1, [1, 2, 3, 4], 3, now=1.0) == 4
    p.sweep(5.0)
    assert len(p) == 0


def test_nothing_is_expected_of_a_full_hit() -> None:
    p = Predictions(5.0)
    p.add("a", 1, [1, 2], 2, now=0.0)
    p.add("a", 1, [], 0, now=0.0)
    assert (len(p), len(p._sent)) == (0, 0)


def test_sending_again_lengthens() -> None:
    p = Predictions(5.0)
    p.add("a", 1, [1, 2], 0, now=0.0)
    p.add("a", 1, [1, 2, 3], 0, now=4.0)
    p.sweep(6.0)
    assert p.extend("a", 1, [1, 2, 3], 0, now=6.0) == 3
    assert list(p.may_start_with(1)) == ["a"]
    p.sweep(9.0)
    assert (len(p), list(p.may_start_with(1))) == (0, [])


def test_another_epoch_or_worker_expects_nothing() -> None:
    p = Predictions(5.0)
    p.add("a", 1, [1, 2], 0, now=0.0)
    assert p.extend("a", 2, [1, 2], 0, now=1.0) == 0
    assert p.extend("a", None, [1, 2], 0, now=1.0) == 0
    assert p.extend("b", 1, [1, 2], 0, now=1.0) == 0
    p.add("a", 2, [1], 0, now=1.0)
    assert p.extend("a", 2, [1, 2], 0, now=1.0) == 1
    p.sweep(100.0)
    assert (len(p), p._first_to_workers) == (0, {})


def test_a_forgotten_worker_leaves_nothing_behind() -> None:
    p = Predictions(5.0)
    p.add("a", 1, [1, 2], 0, now=0.0)
    p.add("b", 1, [1, 2], 0, now=0.0)
    p.forget("a")
    p.forget("nobody")
    assert p.extend("a", 1, [1, 2], 0, now=1.0) == 0
    assert p.extend("b", 1, [1, 2], 0, now=1.0) == 2
    p.sweep(5.0)
    assert (p._workers, p._first_to_workers, len(p._sent)) == ({}, {}, 0)
