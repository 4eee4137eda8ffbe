from __future__ import annotations

from controllers.handbacks import AVOIDED_S, Handbacks


def test_the_next_time_it_goes_elsewhere_if_there_is_another_worker() -> None:
    handbacks = Handbacks()
    assert (handbacks.num, handbacks.is_choosy) == (0, False)
    assert handbacks.avoided({"a", "b"}, 7.0) == set()
    handbacks.add("a", 7.0)
    assert handbacks.avoided({"a", "b"}, 7.0) == {"a"}
    assert handbacks.avoided({"b"}, 7.0) == {"a"}
    assert (handbacks.avoided({"a"}, 7.0), handbacks.avoided(set(), 7.0)) == (set(), set())
    handbacks.add("b", 7.0)
    assert (handbacks.num, handbacks.avoided({"a", "b"}, 7.0)) == (2, {"b"})
    assert handbacks.is_choosy
    handbacks.forgive()
    assert (handbacks.num, handbacks.avoided({"a", "b"}, 7.0)) == (2, set())
    assert not handbacks.is_choosy


def test_it_does_not_wait_for_others_while_that_worker_may_be_free() -> None:
    handbacks = Handbacks()
    handbacks.add("a", 7.0)
    assert handbacks.avoided({"a", "b"}, 6.99 + AVOIDED_S) == {"a"}
    assert handbacks.avoided({"a", "b"}, 7.0 + AVOIDED_S) == set()
