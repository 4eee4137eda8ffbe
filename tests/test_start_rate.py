from __future__ import annotations

import pytest

from controllers.start_rate import MAX_RETRY_S, MIN_RETRY_S, StartRate


def test_nothing_is_known_before_the_first_start() -> None:
    rate = StartRate()
    assert (rate.per_s(5.0), rate.retry_after_s(1000, 5.0)) == (0.0, MIN_RETRY_S)


def test_a_steady_rate_is_found_soon() -> None:
    rate = StartRate()
    for i in range(400):
        rate.add(1, i / 20)
        if i in (100, 200, 399):
            assert rate.per_s(i / 20) == pytest.approx(20.0, rel=0.1)
    assert rate.retry_after_s(200, 399 / 20) == pytest.approx(10.0, rel=0.1)


def test_what_a_client_is_told_is_bounded() -> None:
    rate = StartRate()
    for i in range(100):
        rate.add(1, float(i))
    assert rate.retry_after_s(10**6, 99.0) == MAX_RETRY_S
    assert rate.retry_after_s(0, 99.0) == MIN_RETRY_S


def test_a_stop_is_noticed() -> None:
    rate = StartRate()
    for i in range(100):
        rate.add(10, float(i))
    assert rate.per_s(129.0) < 1.0
