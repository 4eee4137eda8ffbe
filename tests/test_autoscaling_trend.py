from __future__ import annotations

import pytest

from controllers.autoscaling_trend import Trend


def after(slope: float, seconds: int, start: float = 10.0) -> Trend:
    trend = Trend()
    for second in range(seconds):
        trend.observe(start + slope * second, 500.0 + second)
    return trend


def test_a_ramp_is_carried_on() -> None:
    trend = after(0.01, 2000)
    now = 10.0 + 0.01 * 2000
    assert trend.growth(60.0) * trend.quick == pytest.approx(now - 0.6 + 0.6, rel=0.01)


def test_steady_and_shrinking_work_do_not_grow() -> None:
    assert after(0.0, 1000).growth(60.0) == 1.0
    assert after(-0.005, 1000).growth(60.0) == 1.0
    assert Trend().growth(60.0) == 1.0


def test_a_beginning_is_no_trend() -> None:
    assert after(1.0, 50).growth(60.0) == 1.0


def test_growth_is_bounded() -> None:
    assert after(1.0, 1000).growth(1e6) == 2.0
