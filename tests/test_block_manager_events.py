"""TensorRT-LLM's behaviours of cache events, by the numbers of the project's scenario list.

Ours have no `created` event (its content is the replica's `worker_up`), blocks that change alike
share an event, and a salt or adapter shows only in the hashes. Where ours differs otherwise, the
test says so and which entry of docs/decisions.md says why.
"""

from __future__ import annotations

from pathlib import Path

from controllers.events import Lost, Removed, Stored, Updated
from tests.cache_fixture import Cache, ids
from tests.engine_fixture import EngineRun, prompt_of, request
from tests.scenario_tokens import hashes, upto
from tests.tiny_llama import VOCAB

LORA = 42


def stored(
    parent: str | None, names: list[str], num_tokens: list[int], priority: int = 35
) -> Stored:
    return Stored(
        parent=parent,
        hashes=names,
        num_tokens=num_tokens,
        retention_priority=[priority] * len(names),
    )


def test_scenarios_12_13_14_events() -> None:
    cache = Cache(8, 2)
    assert cache.manager.num_blocks == {"gpu": 8, "host": 2}  # what `created` says
    assert cache.drain() == []
    prefix = hashes(upto(9), LORA)
    a = cache.add(upto(9), salt=LORA)
    cache.store_context(a)
    assert cache.drain() == [stored(None, prefix[:2], [4, 4])]
    cache.generate(a, 10)
    cache.remove(a)
    assert cache.drain() == [stored(prefix[1], prefix[2:], [2])]
    c = cache.add(upto(8), salt=LORA)
    cache.store_context(c)
    cache.remove(c)
    assert cache.drain() == []

    d = cache.add([1, *range(1, 13)])
    e = cache.add([2, *range(1, 13)])
    assert cache.drain() == [
        Updated(hashes=prefix[::-1], medium="host", old_medium="gpu"),  # TensorRT-LLM: three events
        Removed(hashes=[prefix[2]]),
    ]
    cache.remove(d, e)
    ends = [hashes([1, *range(1, 12)]), hashes([2, *range(1, 12)])]
    assert cache.drain() == [stored(None, end, [4, 4, 4]) for end in ends]

    f = cache.add([0, 1, 2, 3, 1, 1, 1, 1, 0], salt=LORA)
    assert f.num_cached == 4
    # D's and E's blocks of their last token hold nothing and go first (decision 16), so onboarding
    # [0-3] and one of the two new blocks displace nobody. TensorRT-LLM takes only D's before blocks
    # with content: 1 onboard, 2 offloads, 1 removed.
    assert cache.drain() == [
        Updated(hashes=[prefix[0]], medium="gpu", old_medium="host"),
        Updated(hashes=[ends[0][2]], medium="host", old_medium="gpu"),
    ]
    cache.store_context(f)
    own = hashes([0, 1, 2, 3, 1, 1, 1, 1], LORA)
    assert cache.drain() == [stored(own[0], [own[1]], [4])]


def test_scenario_14_with_one_empty_block() -> None:
    """The same pressure as TensorRT-LLM's: one empty block, all others hold something."""
    cache = Cache(8, 2)
    prefix = hashes(upto(9), LORA)
    cache.run(upto(9), 10, salt=LORA)
    d = cache.add([1, *range(1, 13)])
    e = cache.add([2, *range(1, 13)])
    cache.generate(e, 13)  # its fourth block holds [12]
    cache.remove(d, e)
    cache.drain()
    f = cache.add([0, 1, 2, 3, 1, 1, 1, 1, 0], salt=LORA)
    assert f.num_cached == 4
    tail = hashes([1, *range(1, 12)])
    assert cache.changes() == [
        ("host->gpu", prefix[0]),
        ("gpu->host", tail[2]),
        ("gpu->host", tail[1]),
        ("removed", prefix[1]),
    ]


def test_scenario_15_buffer_of_one_event() -> None:
    cache = Cache(8, 2, event_buffer_size=1)
    prefix = hashes(upto(9))
    a = cache.add(upto(9))
    cache.store_context(a)
    # Nothing is lost yet, where TensorRT-LLM lost `created`.
    assert cache.drain() == [stored(None, prefix[:2], [4, 4])]
    cache.generate(a, 10)
    assert cache.drain() == []
    cache.remove(a)
    assert cache.drain() == [stored(prefix[1], prefix[2:], [2])]


def test_scenario_15_overflow() -> None:
    cache = Cache(8, 2, event_buffer_size=1)
    prefix = hashes(upto(9))
    a = cache.add(upto(9))
    cache.store_context(a)
    cache.events.flush()
    cache.generate(a, 10)
    cache.remove(a)
    # TensorRT-LLM shows the loss only as a gap in its event ids; ours is told (decision 16).
    assert cache.drain() == [
        Lost(reason="buffer_overflow", first=0, last=0),
        stored(prefix[1], prefix[2:], [2]),
    ]


def test_scenario_16_nothing_before_the_first_flush() -> None:
    """Events cannot be off: routing lives on them."""
    cache = Cache(8)
    cache.events.flush()
    assert cache.events.drain(0) == []
    a = cache.add(upto(9))
    cache.store_context(a)
    assert cache.events.drain(0) == []
    cache.events.flush()
    assert cache.events.drain(1.0) == [stored(None, hashes(upto(7)), [4, 4])]


def test_scenario_17_retention_events() -> None:
    cache = Cache(8)
    first, second = hashes(upto(6))
    a = cache.add(upto(7), ranges=[(0, None, 50)], decode=(35,))
    cache.store_context(a)
    cache.remove(a)
    assert cache.drain() == [
        stored(None, [first], [4], priority=50),
        stored(first, [second], [3], priority=50),
    ]
    # A request without retention asks for the default 35. TensorRT-LLM lets it take the leaf that
    # was stored with 50 and store it again; we copy, and the duplicate is not stored (decision 16).
    c = cache.add(upto(7))
    assert (c.num_cached, ids(c)) == (7, [0, 2])
    cache.store_context(c)
    cache.remove(c)
    assert cache.drain() == []
    # Given priorities override on reuse, downwards too; the leaf keeps its own for the same reason,
    # where TensorRT-LLM tells of two updates.
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
    # TensorRT-LLM takes it without a removed event, and stores the same hash again (decision 16).
    assert cache.changes() == [("removed", second), ("stored", second)]


def test_scenario_17_an_equal_full_leaf_is_told_as_updated() -> None:
    """With full blocks the updates are TensorRT-LLM's: one for each reused block."""
    cache = Cache(8)
    cache.run(upto(8), ranges=[(0, None, 50)])
    cache.drain()
    cache.add(upto(8), ranges=[(0, None, 10)])
    assert cache.changes() == [("50->10", h) for h in hashes(upto(7))]


def test_scenario_19_removals_share_an_event_until_the_next_stored() -> None:
    cache = Cache(4, 1)
    cache.run(upto(15))
    kept = hashes(upto(14))
    cache.drain()
    b = cache.add([50, *upto(14)])
    cache.store_context(b)
    cache.remove(b)
    own = hashes([50, *upto(13)])
    # Each block that goes to the only host block removes the one before it: three removals among
    # four updates.
    assert cache.drain() == [
        Updated(hashes=kept[::-1], medium="host", old_medium="gpu"),
        Removed(hashes=kept[:0:-1]),
        stored(None, own[:3], [4, 4, 4]),
        stored(own[2], own[3:], [3]),
    ]


def test_scenario_25_one_short_prompt() -> None:
    cache = Cache(4, block_size=64)
    cache.run([11, 12, 13, 14, 15])
    names = hashes([11, 12, 13, 14], block_size=64)
    assert cache.drain() == [stored(None, names, [4])]


def test_scenario_25_three_requests(tmp_path: Path) -> None:
    run = EngineRun(tmp_path, block_size=32, num_gpu_blocks=8, max_batched_tokens=256)
    first = prompt_of(127)
    shifted = [[(token + shift) % VOCAB for token in first] for shift in range(3)]
    num_removed = []
    for number, prompt in enumerate(shifted):
        name = f"request {number + 1}"
        run.finish(request(name, prompt, max_tokens=6, ignore_eos=True))
        events = run.drain()
        sizes = [event.num_tokens for event in events if isinstance(event, Stored)]
        assert sizes == [[32, 32, 32], [32, 4]]
        assert run.cached_tokens(name) == 0
        num_removed.append(sum(len(e.hashes) for e in events if isinstance(e, Removed)))
        run.step()
        assert run.drain() == []  # nothing after completion
    assert num_removed[0] == 0
    assert min(num_removed[1:]) >= 1
