"""TensorRT-LLM's behaviours of the host tier, by the numbers of the project's scenario list.

Where ours differs on purpose, the test says so and which entry of docs/decisions.md says why.
"""

from __future__ import annotations

from serve_app.engine.block import GPU, HOST
from tests.cache_fixture import Cache, ids
from tests.scenario_tokens import hashes, upto


def test_scenario_9_primary_child_of_a_secondary_parent() -> None:
    cache = Cache(4, 4)
    a = cache.add(upto(11))
    assert (a.num_cached, ids(a)) == (0, [0, 1, 2])
    cache.remove(a)
    first, second, third = hashes(upto(10))
    cache.drain()
    c = cache.add([1, *range(1, 12)])
    assert c.num_cached == 0
    assert cache.changes() == [("gpu->host", third), ("gpu->host", second)]
    cache.remove(c)
    cache.drain()
    d = cache.add([0, 1, 2, 3])
    assert (d.num_cached, ids(d)) == (3, [6])
    cache.generate(d, 4, 5, 6, 7, 0, 0)
    assert ids(d) == [6, 7, 2]
    cache.remove(d)
    # D's own copies of 0 ... 7 are not stored: A's are there, in the host. Its third block is.
    tail = hashes([*upto(7), 0])[2]
    assert cache.changes()[-1] == ("stored", tail)
    blocks = {f"{block.block_hash:016x}": block for block in cache.manager.reusable_blocks()}
    assert [blocks[h].level for h in (first, second, tail)] == [HOST, HOST, GPU]
    # TensorRT-LLM reuses 4 tokens here and calls 9 a thing to be done; we reuse 9 (decision 16).
    e = cache.add([*upto(7), 0, 0])
    assert (e.num_cached, ids(e)) == (9, [0, 1, 2])
    assert cache.changes() == [("host->gpu", first), ("host->gpu", second), ("removed", tail)]


def test_scenario_11_leaf_with_a_dependent() -> None:
    cache = Cache(4, 1)
    a = cache.add(upto(3))
    cache.generate(a, *range(4, 12))
    assert ids(a) == [0, 1, 2]
    blocks = list(a.blocks)
    blocks[1].retention_priority = 75
    c = cache.add(list(range(100, 104)))
    assert (ids(c), cache.num_free) == ([3], 0)
    cache.remove(a)
    assert cache.num_free == 3
    first, second, third = hashes(upto(10))
    cache.drain()

    cache.generate(c, 104)
    assert (ids(c), cache.num_free) == ([3, 4], 2)
    assert cache.changes() == [("gpu->host", third)]
    moved = blocks[2]
    assert (moved.level, moved.retention_priority, moved.parent) == (HOST, 35, blocks[1])
    cache.generate(c, 105, 106, 107)
    assert (ids(c), cache.num_free) == ([3, 4], 2)
    assert cache.changes() == []

    cache.generate(c, 108)
    assert (ids(c), cache.num_free) == ([3, 4, 2], 1)
    assert (blocks[0].level, blocks[1].level) == (HOST, GPU)
    assert (blocks[0].is_reusable, blocks[1].parent, blocks[2].parent) == (True, blocks[0], None)
    assert cache.changes() == [("gpu->host", first), ("removed", third)]
    assert (blocks[1].block_hash, cache.num_cached(upto(11))) == (int(second, 16), 8)
