from __future__ import annotations

from controllers.predictions import Predictions


def assert_empty(p: Predictions) -> None:
    assert (len(p), p._new, p._old) == (0, {}, {})


def test_blocks_are_expected_until_they_expire() -> None:
    p = Predictions(5.0)
    p.add("a", 1, [1, 2, 3], 0, now=10.0)
    assert list(p.of_first(1)) == ["a"]
    assert p.extend("a", 1, [1, 2, 3, 4], 0, now=14.9) == 3
    assert p.extend("a", 1, [1, 2, 9], 0, now=14.9) == 2
    assert p.extend("a", 1, [1, 2, 3], 0, now=15.0) == 0
    p.sweep(20.0)
    assert_empty(p)
    assert_empty(p)


def test_they_continue_what_is_there() -> None:
    p = Predictions(5.0)
    p.add("a", 1, [1, 2, 3, 4], 2, now=0.0)
    assert list(p.of_first(1)) == ["a"]
    assert list(p.of_first(3)) == []
    assert p.extend("a", 1, [1, 2, 3, 4], 0, now=1.0) == 0
    assert p.extend("a", 1, [1, 2, 3, 4], 3, now=1.0) == 4
    assert p.extend("a", 1, [1, 2, 3, 4], 3, now=5.0) == 3


def test_nothing_is_expected_of_a_full_hit() -> None:
    p = Predictions(5.0)
    p.add("a", 1, [1, 2], 2, now=0.0)
    p.add("a", 1, [], 0, now=0.0)
    assert_empty(p)


def test_sending_again_lengthens() -> None:
    p = Predictions(5.0)
    p.add("a", 1, [1, 2], 0, now=0.0)
    p.add("a", 1, [1, 2, 3], 0, now=4.0)
    p.sweep(6.0)
    assert p.extend("a", 1, [1, 2, 3], 0, now=6.0) == 3
    assert list(p.of_first(1)) == ["a"]
    assert p.extend("a", 1, [1, 2, 3], 0, now=9.0) == 0


def test_another_epoch_or_worker_expects_nothing() -> None:
    p = Predictions(5.0)
    p.add("a", 1, [1, 2], 0, now=0.0)
    assert p.extend("a", 2, [1, 2], 0, now=1.0) == 0
    assert p.extend("a", None, [1, 2], 0, now=1.0) == 0
    assert p.extend("b", 1, [1, 2], 0, now=1.0) == 0
    p.add("a", 2, [1], 0, now=1.0)
    assert p.extend("a", 2, [1, 2], 0, now=1.0) == 1
    p.sweep(100.0)
    assert_empty(p)


def test_a_forgotten_worker_leaves_nothing_behind() -> None:
    p = Predictions(5.0)
    p.add("a", 1, [1, 2], 0, now=0.0)
    p.add("b", 1, [1, 2], 0, now=0.0)
    p.forget("a")
    p.forget("nobody")
    assert p.extend("a", 1, [1, 2], 0, now=1.0) == 0
    assert p.extend("b", 1, [1, 2], 0, now=1.0) == 2
    p.sweep(10.0)
    assert_empty(p)


def test_memory_is_bounded_by_what_was_sent_within_twice_the_time() -> None:
    p = Predictions(5.0)
    most = 0
    for number in range(1000):
        now = 100.0 + 0.1 * number
        p.sweep(now)
        p.add(f"w{number % 3}", 1, [4 * number, 4 * number + 1], 0, now)
        most = max(most, len(p))
        assert p.extend(f"w{number % 3}", 1, [4 * number, 4 * number + 1], 0, now) == 2
    assert 100 <= most <= 2 * 2 * 51
    assert len(p._new) + len(p._old) <= 2 * 51


def test_a_generation_ends_only_when_all_of_it_has_expired() -> None:
    p = Predictions(5.0)
    p.add("a", 1, [1], 0, now=100.0)
    p.add("a", 1, [2], 0, now=104.9)
    p.sweep(105.0)
    assert p.extend("a", 1, [2], 0, now=109.8) == 1
    p.add("b", 1, [2], 0, now=106.0)
    assert list(p.of_first(2)) == ["a", "b"]
    p.sweep(110.0)
    assert list(p.of_first(2)) == ["b"]


def test_it_does_not_depend_on_being_swept() -> None:
    """What is added late is not dropped with a generation that should have ended long before."""
    p = Predictions(5.0)
    p.add("a", 1, [1], 0, now=100.0)
    p.add("a", 1, [2], 0, now=300.0)
    p.sweep(300.0)
    assert p.extend("a", 1, [2], 0, now=304.9) == 1
    assert len(p) == 1


def test_what_is_not_computed_is_expected_no_longer() -> None:
    p = Predictions(5.0)
    p.add("a", 1, [1, 2, 3], 0, now=0.0)
    p.add("a", 1, [1, 2, 3, 4, 5], 3, now=0.0)
    p.add("b", 1, [1, 2, 3, 4, 5], 0, now=0.0)
    p.retract("a", [1, 2, 3, 4, 5], 3)
    assert p.extend("a", 1, [1, 2, 3, 4, 5], 0, now=1.0) == 3
    assert p.extend("b", 1, [1, 2, 3, 4, 5], 0, now=1.0) == 5
    p.add("a", 1, [1, 2, 3, 4, 5], 3, now=2.0)
    assert p.extend("a", 1, [1, 2, 3, 4, 5], 0, now=2.0) == 5
    p.sweep(4.0)
    p.sweep(6.0)
    p.retract("a", [1, 2, 3, 4, 5], 3)  # sent before the last generation began
    assert p.extend("a", 1, [1, 2, 3, 4, 5], 3, now=6.5) == 3
    p.retract("unknown", [1], 0)
    p.retract("a", [1], 1)
    p.retract("a", [], 0)
    p.sweep(20.0)
    assert_empty(p)
