"""Traces made up for tests of the simulator, and a fleet in one call."""

from __future__ import annotations

from random import Random

import numpy as np

from controllers.simulation.fleet import Fleet
from controllers.simulation.result import Run
from controllers.simulation.settings import FleetSettings
from controllers.simulation.trace import TRACE_BLOCK, Row, Trace, build

BLOCK = 32


def sessions(num_sessions: int = 40, num_turns: int = 5, seed: int = 0) -> list[Row]:
    """Conversations that grow by one to four trace blocks a turn, behind one common trace block;
    several arrive at once. About one request in 100 ms."""
    rng = Random(seed)
    rows, next_id = [], 1
    for _ in range(num_sessions):
        at, ids = 100.0 * rng.randrange(200), [0]
        for _ in range(num_turns):
            num_new = rng.randint(1, 4)
            ids = [*ids, *range(next_id, next_id + num_new)]
            next_id += num_new
            tail = rng.randrange(1, TRACE_BLOCK)
            last_id, next_id = next_id, next_id + 1
            rows.append(
                Row(at, len(ids) * TRACE_BLOCK + tail, rng.randint(1, 200), [*ids, last_id])
            )
            at += 1000.0 + 100.0 * rng.randrange(50)
    return sorted(rows, key=lambda row: row.timestamp)


def trace_of(rows: list[Row]) -> Trace:
    return build(rows, BLOCK)


def simulated(rows: list[Row], router: str = "cachelane", **settings: object) -> Run:
    """Four workers of 2,000 blocks unless said otherwise."""
    chosen = {"num_workers": 4, "num_blocks": 2000} | settings
    return Fleet(trace_of(rows), FleetSettings(**chosen), router).run()  # type: ignore[arg-type]


def check_whole(run: Run, num_requests: int) -> None:
    """Every request was served, and every block asked for was found or computed."""
    report = run.report
    assert report.num_requests == num_requests == len(run.end_ms)
    assert np.isfinite(run.end_ms).all()
    assert (run.first_token_ms > run.arrival_ms).all()
    assert (run.end_ms >= run.first_token_ms).all()
    assert report.num_hit_blocks + report.num_missed_blocks == report.num_asked_blocks
