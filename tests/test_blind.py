from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from controllers import blind
from controllers.blind import BlindPlacement

WORKERS = [f"r{i}" for i in range(4)]
ROWS = np.arange(4)
IDLE = np.zeros(4)


def prompts(count: int, length: int = 6) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.getrandbits(64) for _ in range(length)] for _ in range(count)]


def test_two_routers_agree_and_load_is_even() -> None:
    one, two = BlindPlacement(), BlindPlacement()
    chosen = [one.choose(p, ROWS, WORKERS, IDLE) for p in prompts(400)]
    assert chosen == [two.choose(p, ROWS, WORKERS, IDLE) for p in prompts(400)]
    assert min(Counter(chosen)[i] for i in range(4)) >= 70


def test_a_worker_that_goes_moves_only_its_own_prompts() -> None:
    placement = BlindPlacement()
    for p in prompts(100):
        before = placement.choose(p, ROWS, WORKERS, IDLE)
        after = placement.choose(p, ROWS[:3], WORKERS, IDLE)
        assert after == before or before == 3


def test_continuations_follow_unless_their_worker_is_overloaded() -> None:
    placement = BlindPlacement()
    prompt = prompts(1)[0]
    home = placement.choose(prompt, ROWS, WORKERS, IDLE)
    other = (home + 1) % 4
    placement.remember(prompt, WORKERS[other], is_blind=True)
    assert placement.choose([*prompt, 1, 2], ROWS, WORKERS, IDLE) == other
    busy = np.zeros(4)
    busy[other] = 4.0
    assert placement.choose([*prompt, 1, 2], ROWS, WORKERS, busy) == home
    assert placement.choose([*prompt, 1, 2], ROWS[np.not_equal(ROWS, other)], WORKERS, IDLE) == home


def test_a_shared_prefix_overflows() -> None:
    placement = BlindPlacement()
    shared = prompts(1)[0]
    chosen = []
    for i in range(200):
        row = placement.choose([*shared, i], ROWS, WORKERS, IDLE)
        placement.remember([*shared, i], WORKERS[row], is_blind=True)
        chosen.append(row)
    counts = Counter(chosen)
    assert max(counts.values()) <= 0.4 * 200
    assert len(counts) >= 3


def test_empty_prompts_and_one_worker() -> None:
    placement = BlindPlacement()
    placement.remember([], "r0", is_blind=True)
    assert placement.choose([], ROWS, WORKERS, IDLE) in range(4)
    assert placement.choose([1], ROWS[2:3], WORKERS, np.full(4, 9.0)) == 2


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blind, "MAX_SESSIONS", 10)
    placement = BlindPlacement()
    for i in range(1000):
        placement.remember([i], f"w{i}", is_blind=True)
    assert list(placement._end_to_worker) == list(range(990, 1000))
    assert len(placement._worker_to_recent) < 300
