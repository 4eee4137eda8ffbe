from __future__ import annotations

from controllers.waiting import MIN_CHARGE_TOKENS, Waiting, order_key


def test_prefill_weighs_against_waiting() -> None:
    assert order_key(1000, 2.0) == 15.5 + 2000.0
    assert order_key(64_000, 0.0) > order_key(100, 0.9)
    assert order_key(64_000, 0.0) < order_key(100, 1.0)


def test_a_full_hit_is_not_for_nothing() -> None:
    assert Waiting("hit", 0, 0.0).charge == MIN_CHARGE_TOKENS
    assert Waiting("long", 5000, 0.0).charge == 5000
