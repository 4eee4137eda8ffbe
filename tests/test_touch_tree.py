from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from controllers.survival import Survival
from controllers.touch_tree import HUB_FROM_KIDS, JOINED_FROM_USES, TouchedRun, TouchTree


def tree(max_blocks: int = 1000) -> TouchTree:
    return TouchTree(Survival(), max_blocks)


def lengths(path: Iterable[TouchedRun]) -> list[int]:
    return [len(run.hashes) for run in path]


def prefix(*tokens: int) -> list[int]:
    """Chained hashes: equal numbers mean equal prefixes."""
    hashes, at = [], 0
    for token in tokens:
        at = hash((at, token))
        hashes.append(at)
    return hashes


def test_a_run_splits_where_prompts_part() -> None:
    t = tree()
    assert lengths(t.use(prefix(1, 2, 3, 4), 0.0)) == [4]
    assert lengths(t.use(prefix(1, 2, 9), 1.0)) == [2, 1]
    path = t.use(prefix(1, 2, 3, 4, 5), 2.0)
    assert lengths(path) == [2, 2, 1]
    assert [run.num_uses for run in path] == [3, 2, 1]
    assert [run.last_used_s for run in path] == [2.0, 2.0, 2.0]


def test_a_shorter_prompt_splits_too() -> None:
    t = tree()
    t.use(prefix(1, 2, 3), 0.0)
    assert lengths(t.use(prefix(1, 2), 1.0)) == [2]
    assert lengths(t.use(prefix(1, 2, 3), 2.0)) == [2, 1]


def test_looking_up_what_is_known_of_a_prompt_is_no_use_of_it() -> None:
    t = tree()
    first, second = t.use(prefix(1, 2, 3, 4), 0.0), t.use(prefix(1, 2, 9), 1.0)
    assert t.known(prefix(1, 2, 3, 7)) == [(first[0], 2), (second[0].kids[prefix(1, 2, 3)[2]], 1)]
    assert t.known(prefix(1, 2)) == [(second[0], 2)]
    assert t.known(prefix(5, 6)) == t.known([]) == []
    assert [run.num_uses for run, _ in t.known(prefix(1, 2, 3, 4))] == [2, 1]
    assert lengths(t.use(prefix(1, 2, 3, 4), 2.0)) == [2, 2]


def test_a_chain_that_is_used_often_becomes_one_run() -> None:
    t = tree()
    for turn in range(1, JOINED_FROM_USES + 20):
        path = t.use(prefix(*range(turn)), float(turn))
    assert len(path) <= JOINED_FROM_USES + 1
    assert [h for run in path for h in run.hashes] == prefix(*range(JOINED_FROM_USES + 19))


def test_the_least_recently_used_is_forgotten_first_and_parents_stay() -> None:
    t = tree()
    t.use(prefix(1, 2, 3), 0.0)
    t.use(prefix(1, 7), 10.0)
    t.forget(before_s=5.0)
    assert set(t.run_of) == set(prefix(1, 7))
    assert lengths(t.use(prefix(1, 2, 3), 11.0)) == [1, 2]


def test_what_exceeds_the_bound_is_forgotten() -> None:
    t = tree(max_blocks=4)
    t.use(prefix(1, 2, 3), 0.0)
    t.use(prefix(4, 5, 6), 1.0)
    t.forget(before_s=-1.0)
    assert set(t.run_of) == set(prefix(4, 5, 6))


prompts = st.lists(st.integers(0, 2), min_size=1, max_size=9)


@given(st.lists(prompts, max_size=60))
def test_a_path_is_the_prompt_and_every_block_knows_its_run(asked: list[list[int]]) -> None:
    t = tree()
    for at, tokens in enumerate(asked):
        hashes = prefix(*tokens)
        path = t.use(hashes, float(at))
        assert [h for run in path for h in run.hashes] == hashes
        assert all(b.parent is a for a, b in zip(path, path[1:], strict=False))
        if at % 7 == 6:
            t.forget(before_s=at - 5.0)
    for block_hash, run in t.run_of.items():
        assert block_hash in run.hashes
        assert run.parent is None or run.parent.kids[run.hashes[0]] is run


def test_a_run_is_what_most_of_its_uses_call_it() -> None:
    t = tree()
    for label in ("agent", "agent", "chat", "agent", "chat", "agent"):
        path = t.use(prefix(1, 2), 0.0)
        path[0].vote(label)
    assert path[0].label == "agent"
    for _ in range(9):
        path[0].vote("chat")
    assert path[0].label == "chat"


def test_what_continues_a_run_of_clear_label_is_of_that_label_unless_many_do() -> None:
    t = tree()
    for _ in range(3):
        known = t.use(prefix(1, 2), 0.0)[0].vote("agent")
    assert known == "agent"
    path = t.use(prefix(1, 2, 3), 1.0)
    assert path[0].vote("wrong") == "agent"
    assert path[1].vote("wrong", "agent") == "agent"  # though nothing is clear of the run itself
    assert path[1].label == "agent"
    for token in range(10, 10 + HUB_FROM_KIDS):
        path = t.use(prefix(1, 2, token), 2.0)
    assert path[0].vote("agent") is None
    assert path[1].vote("chat") is None
    assert path[1].label == "chat"
