"""What must hold for every history of the cache, and the rules that no scenario shows."""

from __future__ import annotations

import pytest

from controllers.events import Removed, Stored, Updated
from serve_app.engine.block import GPU, HOST
from tests.cache_fixture import Cache, ids
from tests.cache_history import History


@pytest.mark.parametrize("num_host_blocks", [0, 1, 5])
@pytest.mark.parametrize("seed", range(6))
def test_any_history(seed: int, num_host_blocks: int) -> None:
    play(seed, Cache(12, num_host_blocks))


@pytest.mark.parametrize("num_host_blocks", [0, 5])
@pytest.mark.parametrize("seed", range(6))
def test_any_history_with_a_sliding_window(seed: int, num_host_blocks: int) -> None:
    play(seed, Cache(12, num_host_blocks, window=6))


@pytest.mark.parametrize("window", [None, 12])
@pytest.mark.parametrize("seed", range(6))
def test_any_history_with_several_windows(seed: int, window: int | None) -> None:
    play(seed, Cache(12, 4, window=window, small=[(8, 10, 2), (5, 9, 0)]))


def play(seed: int, cache: Cache) -> None:
    history = History(seed, cache)
    history.play(150)
    assert history.num_refused > 0
    assert cache.num_free == 12


def test_a_full_cache_refuses_and_changes_nothing() -> None:
    cache = Cache(2)
    cache.run([1, 2, 3, 4, 5])
    kept = cache.add([9] * 8)
    cache.drain()
    refused = cache.sequence([1, 2, 3, 4, 5])
    assert not cache.manager.can_allocate(refused)
    assert not cache.manager.allocate(refused, cache.now)
    assert not cache.manager.grow(kept, 9)
    assert (refused.blocks, len(kept.blocks), cache.num_free) == ([], 2, 0)
    assert cache.drain() == []


def test_spare_blocks_stay_free() -> None:
    cache = Cache(4)
    seq = cache.sequence([1] * 8)
    assert not cache.manager.can_allocate(seq, num_spare=3)
    assert cache.manager.can_allocate(seq, num_spare=2)
    assert cache.manager.allocate(seq, cache.now, num_spare=2)
    assert cache.num_free == 2


def test_shared_blocks_need_no_room() -> None:
    cache = Cache(3)
    first = cache.add([1] * 9)
    cache.store_context(first)
    assert not cache.manager.can_allocate(cache.sequence([1] * 9))
    second = cache.sequence([1] * 8)
    assert not cache.manager.can_allocate(second)  # its last block is shared only up to token 7
    cache.remove(first)
    assert cache.manager.can_allocate(cache.sequence([1] * 9))


def test_the_tail_goes_first_and_takes_its_followers() -> None:
    cache = Cache(3)
    cache.run([*range(12)], ranges=[(0, 4, 0), (4, None, 90)])
    [stored] = cache.drain()
    assert isinstance(stored, Stored)
    cache.add([50] * 4)
    # The first block's retention is the lowest, so the two that follow it cannot be reached again.
    assert cache.drain() == [Removed(hashes=stored.hashes[::-1])]
    assert cache.manager.cached_blocks == {"gpu": 1, "host": 0}


def test_a_one_off_request_copies_what_is_kept_by_more() -> None:
    cache = Cache(8)
    cache.run([1, 2, 3, 4, 5, 6, 7], 8, ranges=[(0, None, 100)])
    one_off = cache.add([1, 2, 3, 4, 5, 6, 99, 99], ranges=[(0, None, 0)], decode=(0,))
    assert (one_off.num_cached, ids(one_off)) == (6, [0, 2])
    assert cache.num_cached([1, 2, 3, 4, 5, 6, 7, 8]) == 7


def test_a_copy_inherits_the_retention_when_none_is_given() -> None:
    cache = Cache(8)
    cache.run([1, 2, 3], 4, ranges=[(0, None, 60, 5.0)])
    copied = cache.add([1, 2, 9, 9])
    [block] = copied.blocks
    assert (block.block_id, block.retention_priority, block.duration_s) == (1, 60, 5.0)


def test_the_only_free_block_can_be_its_own_copy() -> None:
    cache = Cache(2)
    cache.run(list(range(1, 9)))
    parent_is_no_leaf = cache.add([1, 2, 9, 9, 9])
    assert (parent_is_no_leaf.num_cached, cache.num_free) == (2, 0)


def test_expiry_is_told_and_host_blocks_expire_too() -> None:
    cache = Cache(1, 1)
    cache.run([1, 2, 3, 4], ranges=[(0, None, 80, 10.0)])
    [stored] = cache.drain()
    assert isinstance(stored, Stored)
    cache.run([7, 7, 7, 7])
    cache.drain()
    [moved] = [b for b in cache.manager.reusable_blocks() if b.level == HOST]
    assert moved.retention_priority == 80
    cache.manager.expire(9.9)
    assert cache.drain() == []
    cache.manager.expire(10.0)
    assert cache.drain() == [
        Updated(hashes=stored.hashes, retention_priority=35, old_retention_priority=80)
    ]


def test_a_host_block_kept_by_more_is_not_displaced() -> None:
    cache = Cache(1, 1)
    cache.run([1, 2, 3, 4], ranges=[(0, None, 90)])
    cache.run([7, 7, 7, 7], ranges=[(0, None, 60)])
    cache.run([8, 8, 8, 8])
    levels = {block.retention_priority: block.level for block in cache.manager.reusable_blocks()}
    assert levels == {90: HOST, 35: GPU}


def test_reuse_cancels_the_timer() -> None:
    cache = Cache(8)
    cache.run([1] * 9, ranges=[(0, None, 80, 1.0)])
    live = cache.add([1] * 9, ranges=[(0, None, 80, 1.0)])
    cache.drain()
    cache.manager.expire(5.0)
    assert cache.drain() == []
    cache.now = 5.0
    cache.remove(live)
    cache.manager.expire(5.5)
    assert cache.drain() == []
    cache.manager.expire(6.0)
    assert len(cache.drain()) == 1


def test_two_that_computed_the_same_share_one_stored_copy() -> None:
    cache = Cache(8)
    first, second = cache.add([1] * 9), cache.add([1] * 9)
    cache.store_context(first)
    assert len(cache.drain()) == 1
    cache.store_context(second)
    assert cache.drain() == []
    cache.generate(second, 5, 6, 7, 8)
    cache.remove(first, second)
    [event] = cache.drain()
    assert isinstance(event, Stored)
    assert event.num_tokens == [4]
    assert cache.num_cached([*[1] * 9, 5, 6, 7, 8]) == 12
