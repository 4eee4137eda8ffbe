"""TensorRT-LLM's behaviours of the cache manager, by the numbers of the project's scenario list.

Where ours differs on purpose a comment at the place says why. The two differences that show in
several scenarios: (a) a free block that holds nothing goes before any block that holds something;
(b) every block that stops being reusable gets its removed event, descendants first.
"""

from __future__ import annotations

import array

from controllers.blocks import as_token_array, block_hash, block_hashes
from controllers.events import Lost, Removed, Stored, Updated, hex_of, hexes_of
from serve_app.engine.block import GPU, HOST, Block
from serve_app.engine.eviction import EvictionPolicy
from tests.cache_fixture import Cache, ids

LORA = 42  # an adapter's task id, a cache salt: anything that must keep blocks apart


def upto(last: int) -> list[int]:
    """[0, 1, ... last]"""
    return list(range(last + 1))


def hashes(tokens: list[int], salt: int = 0) -> list[str]:
    """Of all blocks of four tokens, a partial last one included."""
    full = block_hashes(as_token_array(tokens), 4, salt)
    rest = tokens[len(full) * 4 :]
    if rest:
        parent = full[-1] if full else None
        full.append(block_hash(parent, as_token_array(array.array("I", rest)), salt))
    return hexes_of(full)


def test_scenario_1_reuse() -> None:
    cache = Cache(8)
    r0 = cache.add(upto(8))
    assert (r0.num_cached, ids(r0)) == (0, [0, 1, 2])
    cache.generate(r0, 9, 10)
    assert cache.num_free == 5
    cache.remove(r0)
    assert cache.num_free == 8
    assert cache.changes() == [("stored", h) for h in hashes(upto(9))]

    r1 = cache.add(upto(8))
    assert (r1.num_cached, ids(r1)) == (8, [0, 1, 3])
    cache.generate(r1, 9, 10)
    cache.remove(r1)
    assert cache.changes() == []  # the duplicate of the third block is not stored

    r0 = cache.add(upto(9))
    assert (r0.num_cached, ids(r0)) == (9, [0, 1, 2])
    r1 = cache.add(upto(10))
    assert (r1.num_cached, ids(r1)) == (8, [0, 1, 4])
    assert cache.num_free == 4
    cache.remove(r0, r1)
    assert cache.num_free == 8

    r2, r3 = cache.add(upto(4)), cache.add([*upto(9), 11])
    assert (r2.num_cached, ids(r2)) == (4, [0, 5])
    assert (r3.num_cached, ids(r3)) == (10, [0, 1, 4])
    assert cache.num_free == 4
    cache.remove(r2, r3)

    r4 = cache.add([*upto(9), 12])
    assert (r4.num_cached, ids(r4)) == (10, [0, 1, 4])
    cache.remove(r4, num_tokens=8)
    r4 = cache.add([*upto(9), 12])
    assert (r4.num_cached, ids(r4)) == (9, [0, 1, 2])
    cache.remove(r4)

    r5 = cache.add([0] * 31)
    assert (r5.num_cached, cache.num_free) == (1, 0)
    cache.remove(r5)
    r6 = cache.add([0])
    assert (r6.num_cached, cache.num_free) == (0, 7)


def test_scenario_3_salt() -> None:
    cache = Cache(16)
    seen = []
    for salt in (0, 12345, 12345, 67890, 0):
        seq = cache.add(upto(8), salt=salt)
        seen.append((seq.num_cached, ids(seq)))
        cache.remove(seq)
    assert seen == [
        (0, [0, 1, 2]),
        (0, [3, 4, 5]),
        (8, [3, 4, 6]),
        (0, [7, 8, 9]),
        (8, [0, 1, 10]),
    ]


def test_scenario_4_statistics() -> None:
    cache = Cache(8)
    cache.run(upto(8))
    assert (cache.manager.num_reused_blocks, cache.manager.num_new_blocks) == (0, 3)
    cache.run(upto(8))
    assert (cache.manager.num_reused_blocks, cache.manager.num_new_blocks) == (2, 4)


def test_scenario_5_priority() -> None:
    cache = Cache(4)
    a = cache.add(upto(7), ranges=[(0, 4, 90), (4, 8, 10)], decode=(20,))
    c = cache.add(list(range(8, 16)))
    cache.remove(a, c)
    d = list(range(16, 24))
    cache.run(d, ranges=[(0, None, 20)])
    assert cache.run(list(range(8, 16))) == 4
    assert cache.run(upto(7)) == 4
    assert cache.run(d) == 0


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
    # (a): the two blocks opened for the generated token hold nothing yet, A's at priority 90 too,
    # so of what can be reused only C's tail goes. TensorRT-LLM takes one more block of C.
    assert ids(d) == [3, 7, 6]
    cache.remove(d)
    assert cache.num_cached(upto(11)) == 11


def test_scenario_7_duration() -> None:
    cache = Cache(8)
    a = cache.add(upto(11), ranges=[(0, None, 80, 0.010)])
    c = cache.add(list(range(12, 24)), ranges=[(0, None, 50)])
    cache.remove(a, c)
    cache.now = 0.050
    cache.manager.expire(cache.now)
    cache.run([1] * 12)
    assert cache.num_cached(list(range(12, 24))) == 11


def test_scenario_8_decode_duration() -> None:
    cache = Cache(9)
    a = cache.add([1, *range(1, 12)], ranges=[(0, None, 50)], decode=(50,))
    cache.generate(a, 12, 13, 14)
    c = cache.add(upto(11), decode=(100, 0.020))
    cache.generate(c, 12, 13, 14)
    cache.remove(a, c)
    cache.now = 0.050
    cache.manager.expire(cache.now)
    cache.run([0] * 8)
    assert cache.num_cached(upto(11)) == 8


def test_scenario_9_primary_child_of_secondary_parent() -> None:
    cache = Cache(4, 4)
    cache.run(upto(11))
    tail = hashes(upto(10))[:0:-1]
    cache.drain()
    c = cache.add([1, *range(1, 12)])
    assert cache.changes() == [("gpu->host", h) for h in tail]
    cache.remove(c)
    d = cache.add([0, 1, 2, 3])
    assert d.num_cached == 3
    cache.generate(d, 4, 5, 6, 7, 0, 0)
    cache.remove(d)
    # TensorRT-LLM reuses 4 here and calls 9 a thing to be done: the path goes through host blocks.
    assert cache.run([*upto(7), 0, 0]) == 9


def test_scenario_10_leaf() -> None:
    cache = Cache(4)
    cache.run(upto(3), 4)
    c = cache.add([1, 1, 2, 3])
    assert (c.num_cached, ids(c)) == (0, [2])
    prompt = list(range(20, 32))
    d = cache.add(prompt)
    assert cache.num_free == 0
    cache.remove(c, d)
    d = cache.add(prompt)
    assert (d.num_cached, cache.num_free) == (11, 1)
    cache.generate(d, 99)
    assert cache.num_free == 0
    before = cache.drain()
    # TensorRT-LLM throws here and relies on its scheduler to prevent it; we say no.
    assert cache.try_add([7]) is None
    assert cache.drain() == []
    assert [type(event) for event in before].count(Stored) == 3


def test_scenario_11_offloaded_leaf_and_its_parent() -> None:
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
    cache.generate(c, 104)
    assert ids(c) == [3, 4]
    assert (blocks[2].level, blocks[2].parent) == (HOST, blocks[1])
    cache.generate(c, 105, 106, 107)
    cache.generate(c, 108)
    assert ids(c) == [3, 4, 2]
    assert (blocks[0].level, blocks[2].parent) == (HOST, None)
    cache.remove(c)


def test_scenarios_12_13_14_events() -> None:
    cache = Cache(8, 2)
    # No created event: its content is the replica's worker_up.
    assert cache.drain() == []
    prefix = hashes(upto(9), LORA)
    a = cache.add(upto(9), salt=LORA)
    cache.store_context(a)
    assert cache.drain() == [
        Stored(parent=None, hashes=prefix[:2], num_tokens=[4, 4], retention_priority=[35, 35])
    ]
    cache.generate(a, 10)
    cache.remove(a)
    assert cache.drain() == [
        Stored(parent=prefix[1], hashes=prefix[2:], num_tokens=[2], retention_priority=[35])
    ]
    c = cache.add(upto(8), salt=LORA)
    cache.store_context(c)
    cache.remove(c)
    assert cache.drain() == []

    d = cache.add([1, *range(1, 13)])
    e = cache.add([2, *range(1, 13)])
    assert cache.drain() == [
        # One event for the three, where TensorRT-LLM has one each.
        Updated(hashes=prefix[::-1], medium="host", old_medium="gpu"),
        Removed(hashes=[prefix[2]]),
    ]
    cache.remove(d, e)
    expected = [hashes([1, *range(1, 12)]), hashes([2, *range(1, 12)])]
    assert [(event.parent, event.hashes) for event in cache.drain()] == [
        (None, stored) for stored in expected
    ]

    f = cache.add([0, 1, 2, 3, 1, 1, 1, 1, 0], salt=LORA)
    assert f.num_cached == 4
    # (a): D's and E's blocks of their last token hold nothing, so onboarding [0-3] and one of the
    # two new blocks displace nobody. TensorRT-LLM offloads two blocks and removes one for them.
    assert cache.drain() == [
        Updated(hashes=[prefix[0]], medium="gpu", old_medium="host"),
        Updated(hashes=[expected[0][2]], medium="host", old_medium="gpu"),
    ]
    cache.store_context(f)
    own = hashes([0, 1, 2, 3, 1, 1, 1, 1], LORA)
    assert cache.drain() == [
        Stored(parent=own[0], hashes=[own[1]], num_tokens=[4], retention_priority=[35])
    ]


def test_scenario_15_overflow() -> None:
    cache = Cache(8, 2, event_buffer_size=1)
    prefix = hashes(upto(9))
    a = cache.add(upto(9))
    cache.store_context(a)
    cache.events.flush()
    cache.generate(a, 10)
    cache.remove(a)
    # TensorRT-LLM shows the loss only as a gap in its event ids.
    assert cache.drain() == [
        Lost(reason="buffer_overflow", first=0, last=0),
        Stored(parent=prefix[1], hashes=prefix[2:], num_tokens=[2], retention_priority=[35]),
    ]


def test_scenario_16_nothing_before_the_first_flush() -> None:
    cache = Cache(8)
    a = cache.add(upto(9))
    cache.store_context(a)
    assert cache.events.drain(0) == []
    cache.events.flush()
    assert [type(event) for event in cache.events.drain(0)] == [Stored]


def test_scenario_17_retention_events() -> None:
    cache = Cache(8)
    first, second = hashes(upto(6))
    a = cache.add(upto(7), ranges=[(0, None, 50)])
    cache.store_context(a)
    cache.remove(a)
    assert cache.drain() == [
        Stored(parent=None, hashes=[first], num_tokens=[4], retention_priority=[50]),
        Stored(parent=first, hashes=[second], num_tokens=[3], retention_priority=[50]),
    ]
    # A request without retention asks for the default 35. TensorRT-LLM lets it take the leaf that
    # was stored with 50 and store it again; we copy, and its duplicate is not stored.
    c = cache.add(upto(7))
    assert c.num_cached == 7
    cache.store_context(c)
    cache.remove(c)
    assert cache.drain() == []
    # Given priorities override on reuse, downwards too; the leaf keeps its own for the same reason.
    cache.add(upto(7), ranges=[(0, None, 10)])
    assert cache.drain() == [
        Updated(hashes=[first], retention_priority=10, old_retention_priority=50)
    ]


def test_scenario_17_an_equal_retention_takes_the_leaf() -> None:
    cache = Cache(8)
    second = hashes(upto(6))[1]
    cache.run(upto(7), ranges=[(0, None, 50)])
    cache.drain()
    c = cache.add(upto(7), ranges=[(0, None, 50)])
    assert ids(c) == [0, 1]
    cache.remove(c)
    # (b): TensorRT-LLM takes it without a removed event, and stores the same hash again.
    assert cache.changes() == [("removed", second), ("stored", second)]


def block(block_id: int, retention_priority: int, duration_s: float | None = None) -> Block:
    """A free block that holds something."""
    made = Block(block_id, GPU, block_id)
    Block(-1, GPU, -1).add_child(b"some", block_id, made)
    made.retention_priority, made.duration_s = retention_priority, duration_s
    return made


def test_scenario_24_order() -> None:
    policy = EvictionPolicy(2)
    default, low = block(0, 35), block(1, 35)
    policy.release(default, 0.0)
    policy.release(low, 0.0)
    assert policy.front(GPU) is default
    assert policy.num_free(GPU) == 2  # looking changes nothing
    policy.claim(low)
    assert policy.num_free(GPU) == 1
    low.retention_priority = 5
    policy.release(low, 0.0)
    assert policy.front(GPU) is low
    policy.claim(default)
    policy.claim(low)
    low.retention_priority = 35
    policy.release(default, 0.0)
    policy.release(low, 0.0, to_front=True)
    assert policy.front(GPU) is low


def test_scenario_24_timers() -> None:
    policy = EvictionPolicy(2)
    timed = block(0, 80, 0.001)
    policy.release(timed, 0.0)
    assert (policy.expire(0.0), timed.retention_priority) == ([], 80)
    assert (policy.expire(0.002), timed.retention_priority) == ([(timed, 80)], 35)

    policy = EvictionPolicy(2)
    first, second = block(1, 80, 0.003), block(2, 50, 0.008)
    policy.release(first, 0.005)
    policy.release(second, 0.005)
    assert (policy.expire(0.005), policy.front(GPU)) == ([], second)
    assert (policy.expire(0.009), policy.front(GPU)) == ([(first, 80)], first)


def test_scenario_24_offload_threshold() -> None:
    cache = Cache(1, 1)
    cache.run(upto(3)[:3], ranges=[(0, None, 29)])
    cache.drain()
    cache.run([9, 9, 9])
    assert [change for change, _ in cache.changes()] == ["removed", "stored"]
    cache.run([8, 8, 8])
    assert [change for change, _ in cache.changes()] == ["gpu->host", "stored"]


def test_scenario_24_a_claim_after_a_move_leaves_the_right_queue() -> None:
    cache = Cache(1, 2)
    cache.run(upto(2))
    cache.run([9, 9, 9])
    moved = [found for found in cache.manager.reusable_blocks() if found.level == HOST]
    assert [found.block_id for found in moved] == [0]
    assert cache.run(upto(2)) == 2
    assert (cache.num_free, cache.manager.used_blocks) == (1, {"gpu": 0, "host": 1})


def test_a_hash_names_the_salt_too() -> None:
    cache = Cache(8)
    cache.run(upto(4), salt=LORA)
    [event] = cache.drain()
    expected = block_hashes(as_token_array(upto(3)), 4, LORA)
    assert event == Stored(
        parent=None, hashes=[hex_of(expected[0])], num_tokens=[4], retention_priority=[35]
    )
