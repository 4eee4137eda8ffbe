"""Placement policies that know no cache, to compare with. Each names one of `rows`."""

from __future__ import annotations

from random import Random

import numpy as np

from controllers.blind import Rows
from controllers.numbers import Floats


def pick_random(rows: Rows, rng: Random) -> int:
    """Any worker."""
    return int(rng.choice(rows.tolist()))


def pick_round_robin(rows: Rows, num_placed: int) -> int:
    """Each worker in turn; `num_placed` counts the requests placed before."""
    return int(rows[num_placed % len(rows)])


def pick_least_requests(rows: Rows, num_requests: Floats, rng: Random) -> int:
    """The worker with the fewest requests in flight (`num_requests` by row), any among equals."""
    counts = num_requests[rows]
    return int(rng.choice(rows[np.equal(counts, counts.min())].tolist()))
