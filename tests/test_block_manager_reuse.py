"""TensorRT-LLM's behaviours of block reuse, by the numbers of the project's scenario list.

Where ours differs on purpose, the test says so and which entry of docs/decisions.md says why.
"""

from __future__ import annotations

import pytest

from controllers.blocks import salt_of
from controllers.errors import InvalidRequest
from controllers.events import Stored
from serve_app.engine.sequence import Sequence
from tests.cache_fixture import Cache, ids, ids_of
from tests.scenario_tokens import hashes, upto


def found(seq: Sequence) -> tuple[int, list[int]]:
    """Tokens reused at admission, and block ids."""
    return seq.num_cached, ids(seq)


def test_scenario_1_reuse() -> None:
    cache = Cache(8)
    r0 = cache.add(upto(8))
    assert found(r0) == (0, [0, 1, 2])
    cache.generate(r0, 9, 10)
    assert (cache.num_used, cache.num_free) == (3, 5)
    cache.remove(r0)
    assert (cache.num_used, cache.num_free) == (0, 8)
    assert cache.changes() == [("stored", h) for h in hashes(upto(9))]

    r1 = cache.add(upto(8))
    assert found(r1) == (8, [0, 1, 3])
    cache.generate(r1, 9, 10)
    cache.remove(r1)
    assert cache.changes() == []  # the duplicate of the third block is not stored

    r0 = cache.add(upto(9))
    assert found(r0) == (9, [0, 1, 2])
    r1 = cache.add(upto(10))
    assert found(r1) == (8, [0, 1, 4])
    assert (cache.num_used, cache.num_free) == (4, 4)
    cache.remove(r0, r1)
    assert cache.num_free == 8

    r2, r3 = cache.add(upto(4)), cache.add([*upto(9), 11])
    assert (found(r2), found(r3)) == ((4, [0, 5]), (10, [0, 1, 4]))
    assert (cache.num_used, cache.num_free) == (4, 4)
    cache.remove(r2, r3)
    cache.drain()


def test_scenario_1_shortened_at_the_end_and_odd_prompts() -> None:
    cache = Cache(8)
    cache.run(upto(8), 9, 10)
    cache.run(upto(8), 9, 10)
    cache.remove(cache.add(upto(9)), cache.add(upto(10)))
    cache.remove(cache.add(upto(4)), cache.add([*upto(9), 11]))
    cache.drain()

    r4 = cache.add([*upto(9), 12])
    assert found(r4) == (10, [0, 1, 4])
    cache.remove(r4, num_tokens=8)
    # The third block is not stored. Its former content is told as removed, see decision 16.
    assert cache.changes() == [("removed", hashes(upto(9))[2])]
    r4 = cache.add([*upto(9), 12])
    assert found(r4) == (9, [0, 1, 2])
    cache.remove(r4)

    r5 = cache.add([0] * 31)
    assert (r5.num_cached, cache.num_used, cache.num_free) == (1, 8, 0)
    cache.remove(r5)
    r6 = cache.add([0])
    assert (r6.num_cached, cache.num_used) == (0, 1)


def test_scenario_2_extra_ids() -> None:
    cache = Cache(16)
    tokens = [*range(100, 106), 0, 1, 2]
    extra_ids = [1, 1, 2, 2, 3, 3, 0, 0, 0]
    first = cache.add(tokens, extra_ids=extra_ids)
    assert found(first) == (0, [0, 1, 2])
    cache.generate(first, 3, 4)
    cache.remove(first)
    again = cache.add(tokens, extra_ids=extra_ids)
    assert found(again) == (8, [0, 1, 3])
    cache.generate(again, 3, 4)
    cache.remove(again)
    # Two longer ones at once take block 4 in between, as in scenario 1.
    longer = cache.add([*tokens, 3], extra_ids=[*extra_ids, 0])
    longest = cache.add([*tokens, 3, 4], extra_ids=[*extra_ids, 0, 0])
    assert (found(longer), found(longest)) == ((9, [0, 1, 2]), (8, [0, 1, 4]))
    cache.remove(longer, longest)

    other = cache.add(tokens, extra_ids=[4, 4, 5, 5, 6, 6, 0, 0, 0])
    assert found(other) == (0, [5, 6, 7])
    cache.remove(other)
    half = cache.add(tokens, extra_ids=[1, 1, 2, 2, 4, 4, 0, 0, 0])
    assert found(half) == (4, [0, 8, 9])


def test_extra_ids_count_token_by_token_in_a_partial_match() -> None:
    cache = Cache(8)
    cache.run([7, 7, 7, 7, 7], extra_ids=[1, 1, 2, 2])
    assert cache.num_cached([7] * 5, extra_ids=[1, 1, 2, 3]) == 3
    assert cache.num_cached([7] * 5, extra_ids=[1, 2**63, 2, 2]) == 1
    assert cache.num_cached([7] * 5) == 0


def test_more_extra_ids_than_tokens_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="extra_ids: 3 for 2 prompt tokens"):
        Cache(8).sequence([1, 2], extra_ids=[1, 2, 3])


NO, ONE, OTHER = range(3)


@pytest.mark.parametrize(
    ("namespaces"),
    [
        pytest.param([{}, {"salt": 12345}, {"salt": 67890}], id="cache salt"),
        # An adapter has no field of its own: it is part of the salt. See decision 16.
        pytest.param(
            [{}, {"salt": salt_of("adapter 1")}, {"salt": salt_of("adapter 2")}], id="lora"
        ),
        pytest.param([{}, {"extra_ids": [2**64 - 1] * 9}, {"extra_ids": [5] * 9}], id="multimodal"),
    ],
)
def test_scenario_3_namespaces(namespaces: list[dict[str, object]]) -> None:
    cache = Cache(16)
    seen = []
    for which in (NO, ONE, ONE, OTHER, NO):
        seq = cache.add(upto(8), **namespaces[which])
        seen.append(found(seq))
        cache.remove(seq)
    assert seen == [
        (0, [0, 1, 2]),
        (0, [3, 4, 5]),
        (8, [3, 4, 6]),
        (0, [7, 8, 9]),
        (8, [0, 1, 10]),
    ]


def test_hashes_tell_namespaces_apart() -> None:
    """A partial block of one token with an extra id has the key of three tokens without."""
    cache = Cache(8)
    cache.run([5, 6], extra_ids=[7])
    cache.run([5, 7, 0, 8])
    first, second = [event for event in cache.drain() if isinstance(event, Stored)]
    assert (first.num_tokens, second.num_tokens) == ([1], [3])
    assert first.hashes != second.hashes
    keys = {block.key for block in cache.manager.reusable_blocks()}
    assert len(keys) == 1


def test_scenario_4_statistics() -> None:
    cache = Cache(8)
    manager = cache.manager
    cache.run(upto(8))
    # TensorRT-LLM calls the new blocks allocTotal, allocNew and missed.
    assert (manager.num_reused_blocks, manager.num_new_blocks) == (0, 3)
    cache.run(upto(8))
    reused, new = manager.num_reused_blocks, manager.num_new_blocks - 3
    assert (reused, new, reused / (reused + new)) == (2, 1, 2 / 3)


def test_scenario_10_leaf() -> None:
    cache = Cache(4)
    a = cache.add(upto(3))
    cache.generate(a, 4)
    cache.remove(a)
    c = cache.add([1, 1, 2, 3])
    assert found(c) == (0, [2])
    prompt = list(range(20, 32))
    d = cache.add(prompt)
    assert (d.num_cached, sorted(ids(d)), cache.num_free) == (0, [0, 1, 3], 0)
    cache.remove(c, d)
    assert cache.num_free == 4
    d = cache.add(prompt)
    assert (d.num_cached, cache.num_free) == (11, 1)
    cache.generate(d, 99)
    assert cache.num_free == 0
    cache.drain()
    # TensorRT-LLM throws here and relies on its scheduler to prevent it; we say no (decision 16).
    assert cache.try_add([7]) is None
    assert (cache.drain(), cache.num_free) == ([], 0)


def test_scenario_23_lookup() -> None:
    cache = Cache(8, block_size=8)
    cache.run(upto(16))
    chain = cache.manager.find(cache.sequence(upto(16)))
    assert ids_of(chain) == [0, 1]
    block, parent = chain[1], chain[0]
    assert block.parent is parent
    root = parent.parent
    assert root is not None
    assert (root.block_id, root.parent) == (-1, None)


@pytest.mark.parametrize(
    "tokens",
    [
        pytest.param(upto(15), id="one token less: the second block is longer"),
        pytest.param([*upto(16), 0], id="one token more"),
        pytest.param([9, *upto(15)], id="another beginning"),
        pytest.param([*upto(8), *upto(7)], id="another second block"),
    ],
)
def test_only_a_whole_key_is_found(tokens: list[int]) -> None:
    cache = Cache(8, block_size=8)
    cache.run(upto(16))
    cache.drain()
    assert cache.manager.find(cache.sequence(tokens)) == []
    assert cache.drain() == []


def test_a_partial_block_and_the_empty_key_are_found() -> None:
    cache = Cache(8, block_size=8)
    cache.run(upto(11))
    cache.run(upto(14))
    chain = cache.manager.find(cache.sequence(upto(14)))
    assert [len(block.key) // 4 for block in chain] == [8, 6]
    assert cache.manager.find(cache.sequence([3])) == []
