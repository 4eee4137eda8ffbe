"""Caches that are too small, work that runs twice, times without any: the simulation ends, with
figures that can be."""

from __future__ import annotations

import math

import msgspec
import pytest

from controllers.errors import SettingsError
from controllers.simulation import turnover
from controllers.simulation.agenda import Agenda, Kind
from controllers.simulation.settings import FleetSettings, Outage
from controllers.simulation.trace import Row
from tests.simulation_rig import check_whole, sessions, simulated

ROWS = sessions()


@pytest.mark.parametrize("router", ["cachelane", "round_robin"])
@pytest.mark.parametrize("num_blocks", [1, 40, 100])
def test_prompts_larger_than_a_whole_cache_run_alone(router: str, num_blocks: int) -> None:
    """However full a cache is, iterations take time."""
    run = simulated(ROWS[:40], router, num_workers=2, num_blocks=num_blocks)
    check_whole(run, 40)


def test_a_worker_larger_than_the_others_is_no_fuller_than_full() -> None:
    """The curve's share is of the largest worker, whoever that is."""
    named, plain = (
        simulated(ROWS, "round_robin", num_blocks=num, blocks_of=blocks_of)
        for num, blocks_of in ((100, dict.fromkeys(range(4), 2000)), (2000, {}))
    )
    assert named.report == plain.report
    run = simulated(ROWS, num_workers=2, num_blocks=100, blocks_of={0: 4000})
    check_whole(run, len(ROWS))


def test_smaller_workers_are_shares_of_the_usual_one() -> None:
    assert FleetSettings(blocks_of={0: 8192, 7: 100}).reference_blocks == 65_536
    assert FleetSettings(blocks_of={0: 8192, 7: 10**6}).reference_blocks == 10**6


def test_an_agenda_that_runs_empty_is_an_error() -> None:
    agenda = Agenda()
    agenda.note(2500.0, Kind.LOAD, 3)
    agenda.note(4000.0, Kind.ARRIVAL)
    assert agenda.next_but(Kind.LOAD) == 4000.0
    assert agenda.take() == (Kind.LOAD, 3)
    assert agenda.take() == (Kind.ARRIVAL, 0)
    assert agenda.next_but(Kind.LOAD) == math.inf
    with pytest.raises(SettingsError, match=r"nothing happens any more after 4.0 s"):
        agenda.take()


@pytest.mark.parametrize("router", ["cachelane", "round_robin"])
def test_reuse_counts_what_ran_twice_as_asked_for_twice(router: str) -> None:
    """Nothing can be found, and nothing is, however often workers die."""
    rows = [Row(100.0 * n, 20_000, 50, list(range(100 * n, 100 * n + 39))) for n in range(60)]
    outages = (Outage(0, 2.0, 4.0), Outage(1, 2.0, 9.0), Outage(0, 6.0, 7.0))
    run = simulated(rows, router, num_workers=2, num_blocks=8000, outages=outages)
    check_whole(run, 60)
    assert run.report.num_rerun > 10
    assert run.report.reuse == 0.0


def test_reuse_of_a_prompt_that_is_found_once_and_lost_once() -> None:
    """The second finds what the first computed, and its worker dies while it decodes; then it
    computes it."""
    rows = [Row(0.0, 2048, 2, [1, 2, 3, 4]), Row(1000.0, 2048, 1000, [1, 2, 3, 4])]
    run = simulated(rows, "round_robin", num_workers=1, outages=(Outage(0, 2.0, 3.0),))
    assert run.report.num_rerun == 1
    assert run.report.reuse == pytest.approx(1 / 3)


def test_long_times_without_work_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load records are left out in them."""
    pause = [msgspec.structs.replace(row, timestamp=row.timestamp + 9e5) for row in ROWS]
    skipped = simulated([*ROWS, *pause]).report
    monkeypatch.setattr(turnover, "QUIET_MS", math.inf)
    told = simulated([*ROWS, *pause]).report
    assert skipped == told
