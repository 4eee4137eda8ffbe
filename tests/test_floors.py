from __future__ import annotations

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from controllers.floors import MAX_BOOST, Floors, ShadowLru
from controllers.survival import Survival
from controllers.touch_tree import TouchTree


def test_a_group_at_its_floor_is_worth_its_index() -> None:
    floors = Floors()
    assert floors.boost("chat") == 1.0
    floors.count("chat", 100, num_hits=60, num_lru_hits=50)
    assert floors.boost("chat") == 1.0


def test_a_shortage_lifts_its_group_alone_and_the_more_the_larger() -> None:
    floors = Floors()
    floors.count("chat", 100, num_hits=46, num_lru_hits=50)
    floors.count("agent", 100, num_hits=90, num_lru_hits=50)
    small = floors.boost("chat")
    floors.count("chat", 100, num_hits=40, num_lru_hits=50)
    assert 1.0 < small < floors.boost("chat") <= MAX_BOOST
    assert floors.boost("agent") == 1.0


def test_a_starved_group_is_lifted_by_the_most_and_a_shortage_ends() -> None:
    floors = Floors()
    floors.count("chat", 100, num_hits=0, num_lru_hits=100)
    assert floors.boost("chat") == MAX_BOOST
    for _ in range(20):
        floors.count("chat", 100_000, num_hits=100, num_lru_hits=50)
    assert floors.boost("chat") == 1.0


def test_a_cache_is_behind_when_all_its_groups_together_are() -> None:
    floors = Floors()
    assert not floors.is_behind
    floors.count("chat", 100, num_hits=10, num_lru_hits=30)
    assert floors.is_behind
    floors.count("agent", 100, num_hits=60, num_lru_hits=30)
    assert not floors.is_behind


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=40),
    st.integers(1, 12),
)
def test_the_shadow_counts_what_lru_would_hit(asked: list[list[int]], num_blocks: int) -> None:
    """Against LRU by blocks, as long as no run splits (splits undercount a little)."""
    tree, shadow = TouchTree(Survival(), 10_000), ShadowLru(num_blocks)
    plain: OrderedDict[tuple[int, ...], None] = OrderedDict()
    for at, tokens in enumerate(asked):
        keys = [tuple(tokens[: i + 1]) for i in range(len(tokens))]
        wanted = next((i for i, key in enumerate(keys) if key not in plain), len(keys))
        for key in reversed(keys):
            plain[key] = None
            plain.move_to_end(key)
        while len(plain) > num_blocks:
            plain.popitem(last=False)
        num_runs = len(tree.run_of)
        path = tree.use([hash(key) for key in keys], float(at))
        got = shadow.use(path, float(at))
        assert 0 <= got <= len(keys)
        if len(path) == 1 and num_runs == 0:
            assert got == wanted == 0
        if at and asked[at] == asked[at - 1]:
            assert got == wanted  # nothing split in between


def test_however_short_a_group_is_its_boost_is_bounded() -> None:
    floors = Floors()
    floors.count("chat", 10, -1_000_000, 10)
    assert floors.boost("chat") == MAX_BOOST
