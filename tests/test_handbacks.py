from __future__ import annotations

from controllers.handbacks import Handbacks


def test_the_next_time_it_goes_elsewhere_if_there_is_another_worker() -> None:
    handbacks = Handbacks()
    assert (handbacks.num, handbacks.avoided({"a", "b"})) == (0, set())
    handbacks.add("a")
    assert handbacks.avoided({"a", "b"}) == {"a"}
    assert handbacks.avoided({"b"}) == {"a"}
    assert (handbacks.avoided({"a"}), handbacks.avoided(set())) == (set(), set())
    handbacks.add("b")
    assert (handbacks.num, handbacks.avoided({"a", "b"})) == (2, {"b"})
    handbacks.sent()
    assert (handbacks.num, handbacks.avoided({"a", "b"})) == (2, set())
