from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np

from controllers.baselines import pick_least_requests, pick_random, pick_round_robin

ROWS = np.array([1, 3, 4])
REQUESTS = np.array([0.0, 2.0, 0.0, 1.0, 1.0])


def test_random() -> None:
    rng = Random(0)
    counts = Counter(pick_random(ROWS, rng) for _ in range(300))
    assert sorted(counts) == [1, 3, 4]
    assert min(counts.values()) > 70


def test_round_robin() -> None:
    assert [pick_round_robin(ROWS, i) for i in range(5)] == [1, 3, 4, 1, 3]


def test_least_requests_only_among_the_candidates() -> None:
    rng = Random(0)
    counts = Counter(pick_least_requests(ROWS, REQUESTS, rng) for _ in range(100))
    assert sorted(counts) == [3, 4]
    assert pick_least_requests(np.array([1]), REQUESTS, rng) == 1
