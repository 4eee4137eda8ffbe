"""Idle workers take turns, whatever little differences their books show."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.placement_rig import Fleet

numbers = Random(1)


def prompt() -> list[int]:
    return [numbers.getrandbits(64) for _ in range(10)]


def counts_of(fleet: Fleet, num_requests: int) -> list[int]:
    counts = Counter(fleet.run(prompt()).worker for _ in range(num_requests))
    return [counts[worker] for worker in fleet.workers]


@pytest.mark.parametrize("seed", range(5))
def test_a_trace_of_other_routers_requests_does_not_keep_an_idle_worker_out(seed: int) -> None:
    """Its mean fades for half a minute; the worker that this router used last has none."""
    fleet = Fleet(3, seed=seed)
    fleet.placement._books.others_prefill_tokens[:] = [0.0, 8.0, 20.0]
    fleet.placement._books.others_requests[:] = [0.0, 0.05, 0.2]
    assert min(counts_of(fleet, 30)) >= 4


def test_first_requests_priced_by_the_prior_do_not_keep_their_worker_out() -> None:
    """They look a hundred times dearer than those after them, when the curve is known."""
    fleet = Fleet(3)
    for _ in range(3):
        query = fleet.query(prompt())
        placed = fleet.choose(query)
        fleet.now += placed.predicted_ttft_ms / 1000.0 / 100.0
        fleet.placement.first_token(query.request_id, fleet.now)
        fleet.placement.release(query.request_id, fleet.now, 1)
    fleet.placement._ledger.model._coefficients /= 100.0
    fleet.placement._ledger.model._curves = None
    assert min(counts_of(fleet, 30)) >= 8


def test_a_much_slower_worker_takes_no_turns() -> None:
    fleet = Fleet(3)
    fleet.placement._books.set_speed(2, 3.0)
    assert counts_of(fleet, 30)[2] == 0
