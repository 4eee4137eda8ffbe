"""TensorRT-LLM's behaviours of retention, by the numbers of the project's scenario list.

Where ours differs on purpose, the test says so and which entry of docs/decisions.md says why.
"""

from __future__ import annotations

from typing import Any

import pytest

from controllers.errors import InvalidRequest
from controllers.retention_ranges import parse_ranges
from tests.cache_fixture import Cache, Range, ids
from tests.scenario_tokens import hashes, upto

# Block size, tokens of the prompt, ranges, retention priority by block (None: no range).
MAPPINGS: list[tuple[int, int, list[Range], list[int | None]]] = [
    (64, 256, [(0, 64, 80), (64, 128, 50)], [80, 50, None, None]),
    (32, 127, [(0, 63, 80), (63, 127, 30)], [80, 80, 30, 30]),
    (32, 128, [(0, 1, 80), (1, 2, 5)], [80, None, None, None]),
    (256, 192, [(0, 128, 80)], [80]),
    (64, 192, [(0, 65, 80), (65, 129, 30)], [80, 80, 30]),
    (64, 256, [(0, 64, 80), (129, None, 50)], [80, None, None, 50]),
    (64, 256, [(127, 193, 80)], [None, None, 80, 80]),
    (64, 128, [(1, None, 80)], [None, 80]),
    (64, 32, [(127, 193, 80)], [None]),
]


@pytest.mark.parametrize(("block_size", "num_tokens", "ranges", "expected"), MAPPINGS)
def test_ranges_to_new_blocks(
    block_size: int, num_tokens: int, ranges: list[Range], expected: list[int | None]
) -> None:
    for order in (ranges, ranges[::-1]):
        cache = Cache(len(expected), block_size=block_size)
        seq = cache.add(upto(num_tokens - 1), ranges=order)
        assert [block.retention_priority for block in seq.blocks] == [p or 35 for p in expected]


@pytest.mark.parametrize(("block_size", "num_tokens", "ranges", "expected"), MAPPINGS)
def test_ranges_to_reused_blocks(
    block_size: int, num_tokens: int, ranges: list[Range], expected: list[int | None]
) -> None:
    cache = Cache(len(expected) + 1, block_size=block_size)
    prompt = upto(num_tokens - 1)
    cache.run(prompt, ranges=[(0, None, 77)])
    seq = cache.add(prompt, ranges=ranges)
    assert seq.num_cached == num_tokens - 1
    assert [block.retention_priority for block in seq.blocks] == [p or 77 for p in expected]


def given(start: int, end: int | None, priority: int) -> dict[str, Any]:
    return {"start": start, "end": end, "retention_priority": priority}


@pytest.mark.parametrize(
    ("ranges", "field"),
    [
        ([given(0, 8, -1)], "retention[0].retention_priority"),
        ([given(0, 8, 101)], "retention[0].retention_priority"),
        ([given(0, None, 80), given(8, 16, 80)], "retention[0].end"),
        ([given(-1, 8, 80)], "retention[0].start"),
        ([given(8, 8, 80)], "retention[0].end"),
        ([given(0, 9, 80), given(8, 16, 80)], "retention[1].start"),
        # TensorRT-LLM sorts ranges and lets them rise along the prompt (decision 16).
        ([given(8, 16, 80), given(0, 8, 80)], "retention[1].start"),
        ([given(0, 8, 50), given(8, 16, 80)], "retention[1].retention_priority"),
    ],
)
def test_ranges_that_are_refused(ranges: list[dict[str, Any]], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_ranges(ranges, num_tokens=64)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "ranges",
    [
        pytest.param([given(0, 30, 80), given(30, 50, 80)], id="adjacent"),
        pytest.param([given(0, 10, 80), given(30, None, 50)], id="gap and open end"),
        pytest.param([given(0, 10, 100), given(10, 20, 0)], id="bounds"),
    ],
)
def test_ranges_that_are_fine(ranges: list[dict[str, Any]]) -> None:
    parsed = parse_ranges(ranges, num_tokens=64)
    assert [given(r.start, r.end, r.retention_priority) for r in parsed] == ranges


def test_scenario_5_priority() -> None:
    cache = Cache(4)
    first, second, third = upto(7), list(range(8, 16)), list(range(16, 24))
    a = cache.add(first, ranges=[(0, 4, 90), (4, 8, 10)], decode=(20,))
    c = cache.add(second)
    assert (ids(a), ids(c)) == ([0, 1], [2, 3])
    cache.remove(a, c)
    cache.drain()
    d = cache.add(third, ranges=[(0, None, 20)])
    assert (d.num_cached, ids(d)) == (0, [1, 3])
    lost = [hashes(upto(6))[1], hashes(list(range(8, 15)))[1]]
    assert cache.changes() == [("removed", h) for h in lost]
    cache.remove(d)
    assert cache.run(second) == 4
    assert cache.run(first) == 4
    assert cache.run(third) == 0


def test_scenario_6_decode_priority() -> None:
    cache = Cache(8)
    a = cache.add(upto(11), ranges=[(0, None, 90)], decode=(90,))
    assert cache.num_free == 5
    cache.generate(a, 100)
    assert cache.num_free == 4
    c = cache.add(list(range(12, 24)), ranges=[(0, None, 5)], decode=(5,))
    assert cache.num_free == 1
    cache.generate(c, 100)
    assert cache.num_free == 0
    cache.remove(a, c)
    assert cache.num_free == 8
    d = cache.add(list(range(24, 36)))
    # The two blocks opened for the generated tokens hold nothing yet, and such blocks go first, A's
    # at priority 90 too (decision 16). TensorRT-LLM takes C's blocks 7, 6 and 5.
    assert ids(d) == [3, 7, 6]
    cache.remove(d)
    assert cache.run(upto(11)) == 11


def test_scenario_6_when_decode_blocks_hold_something() -> None:
    cache = Cache(8)
    a = cache.add(upto(11), ranges=[(0, None, 90)], decode=(90,))
    c = cache.add(list(range(12, 24)), ranges=[(0, None, 5)], decode=(5,))
    cache.generate(a, 100, 101)
    cache.generate(c, 100, 101)
    assert (ids(a), ids(c)) == ([0, 1, 2, 6], [3, 4, 5, 7])
    cache.remove(a, c)
    d = cache.add(list(range(24, 36)))
    assert ids(d) == [7, 5, 4]  # the three lowest: C's decode block, then its tail
    cache.remove(d)
    assert cache.run(upto(11)) == 11


def test_scenario_7_duration() -> None:
    cache = Cache(8)
    a = cache.add(upto(11), ranges=[(0, None, 80, 0.010)])
    c = cache.add(list(range(12, 24)), ranges=[(0, None, 50)])
    cache.remove(a, c)
    cache.expire(0.050)
    assert cache.run([1] * 12) == 0
    assert cache.num_cached(upto(11)) == 8  # A, now at 35, went before C
    assert cache.run(list(range(12, 24))) == 11


def test_scenario_8_decode_duration() -> None:
    cache = Cache(9)
    a = cache.add([1, *range(1, 12)], ranges=[(0, None, 50)], decode=(50,))
    cache.generate(a, 12, 13, 14)
    c = cache.add(upto(11), decode=(100, 0.020))
    cache.generate(c, 12, 13, 14)
    assert (ids(a), ids(c)) == ([0, 1, 2, 3], [4, 5, 6, 7])
    cache.remove(a, c)
    cache.expire(0.050)
    d = cache.add([0] * 8)
    assert ids(d) == [8, 6]  # the empty one, then C's third: the expired one is behind it
    cache.remove(d)
    assert cache.run(upto(11)) == 8
