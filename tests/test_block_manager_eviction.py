"""TensorRT-LLM's behaviours of eviction and pins, by the numbers of the project's scenario list."""

from __future__ import annotations

import pytest

from controllers.events import Removed
from serve_app.engine.block import GPU, HOST, Block
from serve_app.engine.eviction import EvictionPolicy
from tests.cache_fixture import Cache, ids
from tests.scenario_tokens import hashes, upto


def block(block_id: int, retention_priority: int = 35, duration_s: float | None = None) -> Block:
    """A free block that holds something."""
    made = Block(block_id, GPU, block_id)
    Block(-1, GPU, -1).add_child(b"some", block_id, made)
    made.retention_priority, made.duration_s = retention_priority, duration_s
    return made


def released(policy: EvictionPolicy, *blocks: Block, now: float = 0.0) -> tuple[Block, ...]:
    for item in blocks:
        policy.release(item, now)
    return blocks


def test_scenario_22_pinned_blocks_are_not_free() -> None:
    cache = Cache(4)
    seq = cache.add(upto(8))
    pinned = cache.manager.pin(seq)
    assert pinned == [0, 1, 2]
    cache.remove(seq)
    assert (cache.num_free, cache.num_used) == (1, 3)
    cache.drain()
    assert cache.try_add([50] * 5) is None
    assert cache.drain() == []

    cache.manager.unpin(pinned[:1], cache.now)
    assert cache.num_free == 2
    other = cache.add([50] * 5)
    assert ids(other) == [3, 0]
    cache.manager.unpin(pinned[1:], cache.now)
    assert cache.num_free == 2
    cache.remove(other)
    assert cache.num_free == 4


def test_scenario_22_pinned_blocks_are_reusable() -> None:
    cache = Cache(8)
    seq = cache.add(upto(8))
    pinned = cache.manager.pin(seq)
    cache.remove(seq)
    again = cache.add(upto(8))
    assert (again.num_cached, ids(again)) == (8, [0, 1, 3])
    cache.manager.unpin(pinned, cache.now)
    assert cache.num_used == 3
    cache.remove(again)
    assert cache.num_used == 0


def test_unpinned_blocks_go_tail_first() -> None:
    cache = Cache(3)
    seq = cache.add(upto(11))
    pinned = cache.manager.pin(seq)
    cache.remove(seq)
    cache.drain()
    cache.manager.unpin(pinned, cache.now)
    cache.add([50])
    assert cache.drain() == [Removed(hashes=[hashes(upto(10))[2]])]


def test_each_pin_needs_its_unpin() -> None:
    cache = Cache(4)
    seq = cache.add(upto(4))
    assert cache.manager.pin(seq) == cache.manager.pin(seq) == [0, 1]
    cache.remove(seq)
    cache.manager.unpin([1, 0], cache.now)
    assert cache.num_free == 2
    cache.manager.unpin([0, 1], cache.now)
    assert cache.num_free == 4


@pytest.mark.parametrize("block_ids", [[0, 2], [7], [1, 1], [0, 1, 0]])
def test_an_unpin_without_a_pin_changes_nothing(block_ids: list[int]) -> None:
    cache = Cache(4)
    seq = cache.add(upto(4))
    cache.manager.pin(seq)
    cache.remove(seq)
    with pytest.raises(ValueError, match=r"block \d has \d pins"):
        cache.manager.unpin(block_ids, cache.now)
    assert cache.num_free == 2
    cache.manager.unpin([0, 1], cache.now)
    assert cache.num_free == 4


def test_scenario_24_looking_is_not_taking() -> None:
    policy = EvictionPolicy(2)
    first, second = released(policy, block(0), block(1))
    assert (policy.front(GPU), policy.front(GPU), policy.num_free(GPU)) == (first, first, 2)
    policy.claim(first)
    assert (policy.front(GPU), policy.num_free(GPU)) == (second, 1)


def test_scenario_24_released_to_the_front() -> None:
    policy = EvictionPolicy(2)
    _, last = released(policy, block(0), block(1))
    policy.claim(last)
    policy.release(last, 0.0, to_front=True)
    assert policy.front(GPU) is last


def test_scenario_24_a_lower_retention_priority_goes_first() -> None:
    policy = EvictionPolicy(2)
    _, lowered = released(policy, block(0), block(1))
    policy.claim(lowered)
    lowered.retention_priority = 5
    policy.release(lowered, 0.0)
    assert policy.front(GPU) is lowered

    policy = EvictionPolicy(2)
    _, low = released(policy, block(0, 80), block(1, 5))
    assert policy.front(GPU) is low


@pytest.mark.parametrize(
    ("retention_priority", "change"),
    [(5, "removed"), (29, "removed"), (30, "gpu->host"), (35, "gpu->host")],
)
def test_scenario_24_offload_threshold(retention_priority: int, change: str) -> None:
    cache = Cache(1, 1)
    cache.run([1, 2, 3], ranges=[(0, None, retention_priority)])
    cache.drain()
    cache.run([9, 9, 9])
    assert [name for name, _ in cache.changes()] == [change, "stored"]


def test_scenario_24_timers() -> None:
    policy = EvictionPolicy(2)
    [timed] = released(policy, block(0, 80, 0.001))
    assert (policy.expire(0.0), timed.retention_priority) == ([], 80)
    assert (policy.expire(0.002), timed.retention_priority) == ([(timed, 80)], 35)

    policy = EvictionPolicy(2)
    first, second = released(policy, block(1, 80, 0.003), block(2, 50, 0.008), now=0.005)
    assert (policy.expire(0.005), policy.front(GPU)) == ([], second)
    assert (policy.expire(0.009), policy.front(GPU)) == ([(first, 80)], first)


def test_scenario_24_a_claim_after_a_move_leaves_the_right_queue() -> None:
    cache = Cache(1, 2)
    cache.run(upto(2))
    cache.run([9, 9, 9])
    moved = [found for found in cache.manager.reusable_blocks() if found.level == HOST]
    assert [found.block_id for found in moved] == [0]
    assert cache.run(upto(2)) == 2
    assert (cache.num_free, cache.manager.used_blocks) == (1, {"gpu": 0, "host": 1})
