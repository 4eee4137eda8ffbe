"""TensorRT-LLM's behaviours of attention windows, by the numbers of the project's scenario list.

`cache.pools[0]` is the largest window, whose events go to the log; those of others stay out of it.
"""

from __future__ import annotations

import pytest

from controllers.errors import SettingsError
from controllers.events import Removed, Stored, Updated
from serve_app.engine.windows import WindowManagers
from tests.cache_fixture import Cache, Pool, ids
from tests.scenario_tokens import hashes, upto


def told(pool: Pool) -> list[object]:
    """Events of a smaller window."""
    pool.events.flush()
    return list(pool.events.drain(0))


def first_block(tokens: list[int]) -> Stored:
    return Stored(parent=None, hashes=hashes(tokens)[:1], num_tokens=[4], retention_priority=[35])


def test_scenario_18_a_sliding_window_beside_a_full_one() -> None:
    cache = Cache(8, 2, window=16, small=[(12, 4, 2)])
    assert cache.windows is not None
    # What `created` says, ascending.
    assert [(manager.window, manager.num_blocks) for manager in cache.windows.by_window] == [
        (12, {"gpu": 4, "host": 2}),
        (16, {"gpu": 8, "host": 2}),
    ]
    assert cache.windows.num_blocks == {"gpu": 8, "host": 2}
    seq = cache.add(upto(7))
    cache.store_context(seq)
    assert cache.drain() == [first_block(upto(7))]
    # As from 1.3 on; 1.2 does not store the sliding window's blocks before the end.
    assert told(cache.pools[1]) == [first_block(upto(7))]


def test_scenario_19_windows_never_share_a_removal() -> None:
    cache = Cache(3, 1, small=[(12, 3, 1)])
    cache.run(upto(11))
    cache.drain()
    told(cache.pools[1])
    cache.add([50, *upto(10)])
    old = hashes(upto(10))
    # By window three moves to its one host block, so two removals, among them: one event.
    expected = [
        Updated(hashes=old[::-1], medium="host", old_medium="gpu"),
        Removed(hashes=old[:0:-1]),
    ]
    assert cache.drain() == expected
    assert told(cache.pools[1]) == expected


def test_scenario_20_maximum_window() -> None:
    cache = Cache(16, 16, window=16)
    seq = cache.add(upto(15))
    cache.generate(seq, 16, 17, 18, 19)
    assert (seq.num_cached, ids(seq)) == (0, [0, 1, 2, 3, 4])
    cache.remove(seq)
    seq = cache.add(upto(6))
    assert (seq.num_cached, ids(seq)) == (6, [0, 5])
    cache.generate(seq, 100, 101)  # takes block 6, which the list does not name
    assert ids(seq) == [0, 5, 6]
    cache.remove(seq)
    for num_tokens, num_cached, expected in ((10, 9, [0, 1, 7]), (15, 14, [0, 1, 2, 8])):
        seq = cache.add(upto(num_tokens - 1))
        assert (seq.num_cached, ids(seq)) == (num_cached, expected)
        cache.remove(seq)


def test_scenario_21_a_recycled_front_block_ends_storing() -> None:
    cache = Cache(4, window=8)
    first = cache.add(upto(10))
    cache.generate(first, 11)
    assert (ids(first), first.num_detached, cache.num_free) == ([0, 1, 2], 1, 2)
    assert cache.manager.is_storable(first)
    second = cache.add(list(range(100, 108)))
    assert (ids(second), cache.num_free) == ([3, 0], 0)
    assert not cache.manager.is_storable(first)
    assert cache.manager.is_storable(second)
    cache.drain()
    cache.remove(first)
    assert cache.drain() == []
    cache.remove(second)
    assert cache.changes() == [("stored", h) for h in hashes(list(range(100, 107)))]
    assert cache.num_free == 4


def test_nothing_is_stored_behind_a_recycled_block() -> None:
    cache = Cache(4, window=8)
    first = cache.add(upto(10))
    cache.generate(first, 11)
    hundreds = list(range(100, 108))
    second = cache.add(hundreds)
    cache.remove(second, num_tokens=8)  # holds its own tokens in the first one's front block
    cache.remove(first)
    assert cache.num_cached([*hundreds, *range(4, 12)]) == 8
    assert cache.num_cached(upto(11)) == 0


@pytest.mark.parametrize(("num_tokens", "num_detached"), [(10, 0), (11, 1), (14, 1), (15, 2)])
def test_a_block_leaves_when_the_next_token_is_the_first_not_to_see_it(
    num_tokens: int, num_detached: int
) -> None:
    cache = Cache(8, window=8)
    seq = cache.add(upto(num_tokens - 1))
    cache.generate(seq, 50)
    assert seq.num_detached == num_detached


def test_a_front_block_stays_reusable_until_it_is_needed() -> None:
    cache = Cache(8, window=8)
    seq = cache.add(upto(10))
    cache.generate(seq, *range(11, 20))
    assert (seq.num_detached, cache.num_used) == (3, 2)
    assert cache.changes() == [("stored", h) for h in hashes(upto(11))]
    other = cache.add([*upto(7), 50])
    assert (other.num_cached, ids(other)[:2]) == (8, [0, 1])
    cache.remove(other, seq)
    assert cache.num_cached(upto(20)) == 19
    assert (cache.num_used, cache.num_free) == (0, 8)


def test_an_equal_prefix_of_another_keeps_a_sequence_storable() -> None:
    cache = Cache(8, window=8)
    first, second = cache.add(upto(10)), cache.add(upto(10))
    cache.generate(first, 11)
    cache.generate(second, 11)  # its front block, a duplicate, holds nothing reusable now
    assert (first.num_detached, second.num_detached) == (1, 1)
    duplicate = second.blocks[0]
    while duplicate.queue is not None:
        cache.add([60])
    assert cache.manager.is_storable(second)
    cache.drain()
    cache.remove(second)
    assert cache.changes() == [("stored", h) for h in hashes(upto(10))[1:]]


def test_the_window_that_knows_least_decides_what_is_reused() -> None:
    cache = Cache(16, small=[(8, 4, 0)])
    cache.run(upto(12))
    cache.run([50] * 9)  # leaves the small window one block of the four
    assert cache.manager.num_cached_tokens(cache.sequence(upto(12))) == 12
    assert cache.num_cached(upto(12)) == 4
    seq = cache.add(upto(12))
    assert (seq.num_cached, ids(seq)[:3]) == (4, [0, 1, 2])  # all three are shared nevertheless
    assert [part.num_cached for _, part in cache.parts(seq)] == [4, 4]
    cache.remove(seq)
    assert cache.run(upto(12)) == 12


def test_no_window_takes_anything_when_one_has_no_room() -> None:
    cache = Cache(16, small=[(8, 3, 0)])
    _, small = cache.pools
    assert cache.windows is not None
    seq = cache.add(upto(7))
    cache.drain()
    assert cache.try_add(upto(7)) is None
    assert not cache.windows.grow(seq, 13)
    assert (cache.num_used, small.manager.used_blocks["gpu"], len(seq.blocks)) == (2, 2, 2)
    cache.generate(seq, 8)
    assert (cache.num_used, small.manager.used_blocks["gpu"]) == (3, 3)
    assert cache.drain() == []
    cache.remove(seq)
    assert (cache.num_used, small.manager.used_blocks["gpu"]) == (0, 0)


def test_only_the_smaller_window_slides() -> None:
    cache = Cache(16, small=[(8, 4, 0)])
    seq = cache.add(upto(10))
    cache.generate(seq, 11, 12, 13, 14, 15, 16)
    [(_, own), (_, view)] = cache.parts(seq)
    assert (own.num_detached, view.num_detached) == (0, 2)
    assert (cache.num_used, cache.pools[1].manager.used_blocks["gpu"]) == (5, 3)
    cache.remove(seq)


@pytest.mark.parametrize(
    ("windows", "block_sizes", "message"),
    [
        ([], [], r"windows are \[\]"),
        ([8, 8], [4, 4], r"windows are \[8, 8\]: each must be there once"),
        ([None, None], [4, 4], "each must be there once"),
        ([8, None], [8, 4], r"block sizes \[4, 8\], not one"),
    ],
)
def test_managers_that_do_not_fit(
    windows: list[int | None], block_sizes: list[int], message: str
) -> None:
    pools = [Pool(4, 0, size, 8, 30, of) for of, size in zip(windows, block_sizes, strict=True)]
    with pytest.raises(SettingsError, match=message):
        WindowManagers([pool.manager for pool in pools])
