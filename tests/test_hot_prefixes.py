from __future__ import annotations

from typing import Any

import numpy as np

from controllers.blocks import block_hashes
from controllers.hot_prefixes import (
    MAX_BLOCKS,
    MAX_CANDIDATES,
    HotPrefixes,
    is_warm_up,
    warm_up_id,
)
from controllers.retention import Retention, TokenRange

BLOCK_SIZE = 4
SYSTEM = list(range(100, 112))  # three blocks
KEPT = Retention(ranges=(TokenRange(0, 12, 100), TokenRange(12, None, 60, 60.0)))


class Seen:
    def __init__(self) -> None:
        self.prefixes = HotPrefixes(BLOCK_SIZE)
        self.now = 0.0

    def prompt(self, *tokens: int, salt: int = 0) -> None:
        array = np.array(tokens, np.uint32)
        self.prefixes.observe(
            block_hashes(array, BLOCK_SIZE, salt),
            array.tobytes(),
            salt=salt,
            tenant="default",
            adapter=None,
            retention=KEPT,
            now=self.now,
        )

    def hottest(self, num: int = 10, max_tokens: int = 1000, min_uses: int = 3) -> list[list[int]]:
        found = self.prefixes.hottest(min_uses, num, max_tokens, self.now)
        return [np.frombuffer(prefix.token_ids, np.uint32).tolist() for prefix in found]


def ask_often(seen: Seen, system: list[int], times: int, **changes: Any) -> None:
    for i in range(times):
        question = [1000 * system[0] + 10 * i + k for k in range(8)]
        seen.prompt(*system, *question, **changes)


def test_what_many_requests_begin_with() -> None:
    seen = Seen()
    ask_often(seen, SYSTEM, 2)
    assert seen.hottest() == []
    ask_often(seen, SYSTEM, 3)
    assert seen.hottest() == [SYSTEM]


def test_two_system_prompts_with_a_common_header() -> None:
    seen = Seen()
    one, other = [*SYSTEM, 1, 2, 3, 4], [*SYSTEM, 5, 6, 7, 8]
    for i in range(8):
        seen.prompt(*one, *range(50 + 4 * i, 58 + 4 * i))
        seen.prompt(*other, *range(500 + 4 * i, 508 + 4 * i))
    assert sorted(seen.hottest()) == sorted([one, other])  # what both have comes with either


def test_a_conversation_is_nobody_elses_prefix() -> None:
    seen = Seen()
    history = list(range(8))
    for turn in range(20):
        history += range(1000 * turn, 1000 * turn + 8)
        seen.prompt(*history)
    assert seen.hottest() == []


def test_the_most_used_tokens_come_first_and_within_the_bounds() -> None:
    seen = Seen()
    short, long = list(range(8)), list(range(200, 240))
    ask_often(seen, short, 6)
    ask_often(seen, long, 6)
    assert seen.hottest() == [long, short]
    assert seen.hottest(num=1) == [long]
    assert seen.hottest(max_tokens=20) == [short]


def test_it_asks_for_the_retention_of_the_part_alone() -> None:
    seen = Seen()
    ask_often(seen, [*SYSTEM, 1, 2, 3, 4], 4)
    (prefix,) = seen.prefixes.hottest(3, 1, 1000, 0.0)
    assert prefix.retention == Retention(
        ranges=(TokenRange(0, 12, 100), TokenRange(12, 16, 60, 60.0)), decode_retention_priority=0
    )
    assert (prefix.num_tokens, len(prefix.hashes)) == (16, 4)


def test_tenants_with_different_salts_share_nothing() -> None:
    seen = Seen()
    ask_often(seen, SYSTEM, 2)
    ask_often(seen, SYSTEM, 2, salt=7)
    assert seen.hottest() == []


def test_uses_fade() -> None:
    seen = Seen()
    ask_often(seen, SYSTEM, 4)
    seen.now = 600.0
    assert seen.hottest() == []


def test_memory_is_bounded() -> None:
    seen = Seen()
    long = list(range(BLOCK_SIZE * (MAX_BLOCKS + 10)))
    ask_often(seen, long, 4)
    assert len(seen.hottest(max_tokens=10**6)[0]) == BLOCK_SIZE * MAX_BLOCKS
    for i in range(MAX_CANDIDATES + 50):
        ask_often(seen, list(range(10_000 * i, 10_000 * i + 8)), 2)
    assert len(seen.prefixes._candidates) == MAX_CANDIDATES
    assert len(seen.prefixes._recent) == 32


def test_names_of_warm_ups() -> None:
    assert is_warm_up(warm_up_id("a"))
    assert not is_warm_up("cmpl-warm-a")
