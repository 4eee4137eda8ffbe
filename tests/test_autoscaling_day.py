"""The policy on a day's arrivals; see `tests.autoscaling_day` for the model of the fleet."""

from __future__ import annotations

import math

from controllers.autoscaling_settings import AutoscalingSettings
from tests.autoscaling_day import Day, mean_service_s, run_day

DAY_S = 7200.0  # a day twelve times as fast: what must be kept up with changes twelve times as fast
SETTINGS = AutoscalingSettings(enabled=True, max_replicas=12)


def arrivals(now: float) -> float:
    """Requests a second: a night, a hill, and a burst on its far side."""
    x = now / DAY_S
    return 1.5 + 7.0 * max(0.0, math.sin(math.pi * x)) ** 2 + (3.0 if 0.70 < x < 0.74 else 0.0)


def oracle_s() -> float:
    """Replica seconds of who knows all arrivals, starts replicas in no time, and keeps each of them
    busy all the time: nobody can do with less."""
    service_s = mean_service_s()
    return sum(math.ceil(arrivals(t) * service_s) * 10.0 for t in range(0, int(DAY_S), 10))


def test_a_day() -> None:
    day = run_day(arrivals, DAY_S, SETTINGS, start_s=30.0, num_first=2)
    assert day.num_requests > 30_000
    assert day.share_met >= 0.99, day
    assert day.replica_s <= 1.7 * oracle_s(), (day.replica_s, oracle_s())
    assert day.replica_s <= 0.75 * peak_s(day)
    assert day.num_turns(within_s=240.0) <= 1, day.targets  # the burst may take one back


def peak_s(day: Day) -> float:
    """Replica seconds of a fleet that always has as many as this day needed at most."""
    return DAY_S * max(target for _, target in day.targets)


def test_steady_work_settles_and_stays() -> None:
    day = run_day(lambda now: 4.0, 2400.0, SETTINGS, start_s=30.0, num_first=1)
    late = [target for at, target in day.targets if at > 600.0]
    assert late == [], day.targets
    assert day.share_met >= 0.95
