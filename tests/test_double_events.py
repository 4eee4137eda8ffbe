"""Cache events of the double: both schemas, when each fires, what is silent, how loss shows."""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import Any

import pytest

from tests.trtllm_calls import brief, events_of, make_llm, retention, run, sampling

NEW = "1.3.0rc27"


@pytest.fixture
def double(trtllm_double: ModuleType) -> Any:
    trtllm_double.double.configure(is_proxy=False)
    return trtllm_double.double


def kinds_of(events: list[dict[str, Any]]) -> list[str]:
    return [event["data"]["type"] for event in events]


def hashes_of(event: dict[str, Any]) -> list[int]:
    return [block["block_hash"] for block in event["data"]["blocks"]]


def test_the_schema_of_1_2(double: Any) -> None:
    from tensorrt_llm.double.hashes import v1_block_key

    llm = make_llm(num_blocks=8, host_cache_size=2 * 4 * 1024)
    run(llm, range(5))
    first = v1_block_key(range(4))
    tokens = [{"type": "unique_token", "token_id": i, "token_extra_id": 0} for i in range(5)]
    partial = v1_block_key([4], first)
    stored_block = {"type": "stored_block", "cache_level": 0, "priority": 35, "mm_keys": []}
    assert events_of(llm) == [
        {
            "event_id": 0,
            "data": {"type": "created", "num_blocks_per_cache_level": [8, 2]},
            "window_size": 32,
        },
        {
            "event_id": 1,
            "data": {
                "type": "stored",
                "parent_hash": None,
                "blocks": [{**stored_block, "block_hash": first, "tokens": tokens[:4]}],
            },
            "window_size": 32,
        },
        {
            "event_id": 2,
            "data": {
                "type": "stored",
                "parent_hash": first,
                "blocks": [{**stored_block, "block_hash": partial, "tokens": tokens[4:]}],
            },
            "window_size": 32,
        },
    ]


def test_the_schema_of_1_3(double: Any) -> None:
    double.configure(version=NEW, is_proxy=False)
    llm = make_llm()
    run(llm, range(4), cache_salt="tenant-A")
    created, stored = events_of(llm)
    assert set(created) == set(stored) == {"event_id", "data", "window_size", "hash_algo"}
    assert stored["hash_algo"] == "v1_block_key"
    assert [block["cache_salt"] for block in stored["data"]["blocks"]] == ["tenant-A"]


@pytest.mark.parametrize(
    ("algorithm", "kind"), [("v2_sha256", str), ("v2_sha256_64", int), ("v1_block_key", int)]
)
def test_hash_algorithms_of_the_v2_manager(algorithm: str, kind: type, double: Any) -> None:
    double.configure(version=NEW, is_proxy=False)
    llm = make_llm(use_kv_cache_manager_v2=True, kv_cache_event_hash_algo=algorithm)
    run(llm, range(4))
    stored = events_of(llm)[1]
    assert stored["hash_algo"] == algorithm
    [name] = hashes_of(stored)
    assert type(name) is kind
    assert kind is int or len(str(name)) == 64


def test_the_v1_manager_ignores_other_algorithms(double: Any) -> None:
    double.configure(version=NEW, is_proxy=False)
    llm = make_llm(kv_cache_event_hash_algo="v2_sha256")
    run(llm, range(4))
    assert {event["hash_algo"] for event in events_of(llm)} == {"v1_block_key"}


@pytest.mark.parametrize("version", ["1.2.1", NEW])
def test_scenario_25_a_short_request(version: str, double: Any) -> None:
    """5 tokens, B = 64."""
    double.configure(version=version, is_proxy=False)
    llm = make_llm(num_blocks=4, block_size=64)
    run(llm, range(5), num_tokens=1)
    created, stored = events_of(llm)
    assert created["data"] == {"type": "created", "num_blocks_per_cache_level": [4, 0]}
    assert created["window_size"] == stored["window_size"] == 256
    [block] = stored["data"]["blocks"]
    assert stored["data"]["parent_hash"] is None
    assert (len(block["tokens"]), block["mm_keys"]) == (5, [])
    assert block.get("cache_salt") is None


@pytest.mark.parametrize("version", ["1.2.1", NEW, "1.4.0rc1"])
async def test_scenario_25_end_to_end(version: str, double: Any) -> None:
    """Prompts of 127 tokens, 6 generated, B = 32, 8 blocks: 5 stored each, old ones removed."""
    double.configure(version=version, is_proxy=False)
    llm = make_llm(num_blocks=8, block_size=32, max_num_tokens=64)
    ids = []
    for number in range(3):
        prompt = [(number + i) % 250 for i in range(127)]
        await llm.generate_async(prompt, sampling(max_tokens=6))
        told = [event async for event in listened(llm)]
        ids += [event["event_id"] for event in told]
        assert sum(len(hashes_of(e)) for e in told if e["data"]["type"] == "stored") == 5
        removed = [e["data"]["block_hashes"] for e in told if e["data"]["type"] == "removed"]
        assert (kinds_of(told).count("created"), bool(removed)) == (number == 0, number > 0)
        assert all(removed)
    assert ids == list(range(len(ids)))
    assert events_of(llm) == []


async def listened(llm: Any) -> Any:
    """As a reader must: the end differs between versions."""
    iterator = llm.get_kv_cache_events_async(0)
    while True:
        try:
            event = await iterator.__anext__()
        except (StopAsyncIteration, asyncio.QueueEmpty, IndexError):
            return
        yield event


@pytest.mark.parametrize(
    ("version", "error"),
    [("1.2.1", asyncio.QueueEmpty), (NEW, IndexError), ("1.4.0rc1", StopAsyncIteration)],
)
async def test_how_the_iterator_ends(version: str, error: type, double: Any) -> None:
    double.configure(version=version, is_proxy=False)
    iterator = make_llm().get_kv_cache_events_async(0)
    assert (await iterator.__anext__())["event_id"] == 0
    with pytest.raises(error):
        await iterator.__anext__()


def test_scenario_12_lora(double: Any, tmp_path: Any) -> None:
    """Context: whole blocks under the root; end: the partial one under the last of them."""
    from tensorrt_llm.double.hashes import v1_block_key
    from tensorrt_llm.executor.request import LoRARequest

    llm = make_llm(enable_lora=True)
    lora = LoRARequest("a", 42, str(tmp_path))
    run(llm, range(10), num_tokens=2, lora_request=lora)
    _, context, end = events_of(llm)
    first = v1_block_key(range(4), lora_id=42)
    second = v1_block_key(range(4, 8), first, lora_id=42)
    assert (context["data"]["parent_hash"], hashes_of(context)) == (None, [first, second])
    assert (end["event_id"], end["data"]["parent_hash"]) == (2, second)
    assert len(end["data"]["blocks"]) == 1
    assert run(llm, range(8), lora_request=lora).cached_tokens == 7
    assert events_of(llm) == []
    assert run(llm, range(8)).cached_tokens == 0


def test_a_lora_request_without_lora_is_served_without_it(double: Any, tmp_path: Any) -> None:
    from tensorrt_llm.executor.request import LoRARequest

    llm = make_llm()
    run(llm, range(9), lora_request=LoRARequest("a", 42, str(tmp_path)))
    assert run(llm, range(9)).cached_tokens == 8
    with pytest.raises(ValueError, match="does not exist"):
        LoRARequest("a", 42, str(tmp_path / "nowhere"))


def test_salts_have_hashes_of_their_own(double: Any) -> None:
    from tensorrt_llm.double.hashes import v1_block_key
    from tensorrt_llm.inputs import get_cache_salt_id

    llm = make_llm(num_blocks=16)
    found = [run(llm, range(9), cache_salt=salt).cached_tokens for salt in ("a", "b", "a", None)]
    assert found == [0, 0, 8, 0]
    firsts = [hashes_of(e)[0] for e in events_of(llm)[1:] if e["data"]["parent_hash"] is None]
    salted = [v1_block_key(range(4), salt_id=get_cache_salt_id(salt)) for salt in ("a", "b")]
    assert firsts == [*salted, v1_block_key(range(4))]


def test_scenario_15_overflow(double: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Buffer of one event: the first id that is seen says what was lost."""
    llm = make_llm(event_buffer_max_size=1)
    run(llm, range(10), num_tokens=2)
    [last] = events_of(llm)
    assert (last["event_id"], last["data"]["parent_hash"] is None) == (2, False)
    assert events_of(llm) == []
    text = "The event queue has reached the max size of 1. Events have been discarded."
    assert text in caplog.messages


@pytest.mark.parametrize("option", [{"event_buffer_max_size": 0}, {"enable_block_reuse": False}])
def test_scenario_16_no_events(option: dict[str, Any], double: Any) -> None:
    llm = make_llm(**option)
    run(llm, range(9))
    assert events_of(llm) == []


def test_without_reuse_nothing_is_reused(double: Any) -> None:
    llm = make_llm(enable_block_reuse=False)
    assert [run(llm, range(9)).cached_tokens for _ in range(2)] == [0, 0]


def test_scenario_17_a_partial_block_is_stored_again(double: Any) -> None:
    """The leaf is taken without a word; only its new life is told."""
    llm = make_llm()
    keep = retention((0, None, 50))
    run(llm, range(6), num_tokens=2, kv_cache_retention_config=keep)
    first = events_of(llm)
    assert kinds_of(first) == ["created", "stored", "stored"]
    again = run(llm, range(6), num_tokens=2, kv_cache_retention_config=keep)
    assert again.cached_tokens == 5
    [told] = events_of(llm)
    assert told["data"]["parent_hash"] == first[1]["data"]["blocks"][0]["block_hash"]
    assert hashes_of(told) == hashes_of(first[2])


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("1.2.1", [("removed", 3)]),
        (NEW, [("removed", 1)]),
    ],
)
def test_descendants_of_an_evicted_block(
    version: str, expected: list[tuple[Any, ...]], double: Any
) -> None:
    """A low parent goes before its high child, which 1.3 does not mention."""
    double.configure(version=version, is_proxy=False)
    llm = make_llm(num_blocks=3)
    run(llm, range(9), kv_cache_retention_config=retention((0, 4, 10), (4, None, 90)))
    assert kinds_of(events_of(llm)) == ["created", "stored", "stored"]
    run(llm, range(50, 54))
    assert [entry for entry in brief(events_of(llm)) if entry[0] == "removed"] == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("1.2.1", ["removed", "updated", "removed", "stored", "removed"]),
        ("1.4.0rc1", ["updated", "removed", "stored", "removed"]),
    ],
)
def test_scenario_19_removals_are_batched(version: str, expected: list[str], double: Any) -> None:
    """Old: adjacent ones only. New: all of a window until its next stored event or the flush."""
    from tensorrt_llm.double.events import EventWriter, Schema
    from tensorrt_llm.double.tap import MovedChange, Node, RemovedChange, StoredChange
    from tensorrt_llm.double.versions import Version

    def node(name: int) -> Node:
        return Node(name, name, None, 4, [name], None, name)  # type: ignore[arg-type]

    batches = Version.parse(version).batches_removals
    writer = EventWriter(Schema(None, None, False, batches))
    changes = [
        RemovedChange(node(1), 16),
        MovedChange(node(2), 0, 1, 16),
        RemovedChange(node(3), 16),
        RemovedChange(node(4), 16),
        StoredChange(None, [], [], None, 16),  # type: ignore[arg-type]
        RemovedChange(node(5), 16),
    ]
    told = writer.events_of(changes)
    assert kinds_of(told) == expected
    removed = [e["data"]["block_hashes"] for e in told if e["data"]["type"] == "removed"]
    assert removed == ([[1, 3, 4], [5]] if batches else [[1], [3, 4], [5]])
    other = [RemovedChange(node(1), 16), RemovedChange(node(2), 12), RemovedChange(node(3), 16)]
    windows = [(e["window_size"], e["data"]["block_hashes"]) for e in writer.events_of(other)]
    late, adjacent = [(16, [1, 3]), (12, [2])], [(16, [1]), (12, [2]), (16, [3])]
    assert windows == (late if batches else adjacent)


def test_scenario_13_offload(double: Any) -> None:
    """Updates tell of moves to the host; what does not fit there is removed."""
    double.configure(version=NEW, is_proxy=False)
    llm = make_llm(num_blocks=8, host_cache_size=2 * 4 * 1024)
    run(llm, range(10), num_tokens=2)
    events_of(llm)
    long = run(llm, range(100, 125))
    told = brief(events_of(llm))
    assert long.cached_tokens == 0
    assert [entry for entry in told if entry[0] == "cache_level"] == [("cache_level", 0, 1)] * 2
    assert run(llm, range(9)).cached_tokens == 8
    assert ("cache_level", 1, 0) in brief(events_of(llm))


@pytest.mark.parametrize(("version", "num_moved"), [("1.3.0rc6", 3), (NEW, 0)])
def test_the_offload_threshold_is_dropped_by_old_versions(
    version: str, num_moved: int, double: Any
) -> None:
    double.configure(version=version, is_proxy=False)
    llm = make_llm(host_cache_size=2 * 4 * 1024, secondary_offload_min_priority=90)
    run(llm, range(9))
    run(llm, range(100, 130))
    moved = [entry for entry in brief(events_of(llm)) if entry[0] == "cache_level"]
    assert moved == [("cache_level", 0, 1)] * num_moved


def test_versions_before_the_fix_lose_a_batch_with_an_update(double: Any) -> None:
    llm = make_llm()
    run(llm, range(9), kv_cache_retention_config=retention((0, None, 50)))
    assert kinds_of(events_of(llm)) == ["created", "stored", "stored"]
    run(llm, range(9), kv_cache_retention_config=retention((0, None, 10)))
    assert events_of(llm) == []
    run(llm, range(30, 34))
    assert [event["event_id"] for event in events_of(llm)] == [5]


def test_scenario_18_windows(double: Any) -> None:
    """Each has blocks and events of its own; 1.2 stores contexts in the largest only."""
    double.configure(version="1.2.1", is_proxy=False)
    old = make_llm(max_attention_window=[12, 16], max_seq_len=16)
    created = events_of(old)
    assert [(e["event_id"], e["window_size"]) for e in created] == [(0, 12), (1, 16)]
    assert windows_of_stored(old, num_tokens=2) == [16, 12, 16]
    double.configure(version=NEW, is_proxy=False)
    new = make_llm(max_attention_window=[12, 16], max_seq_len=16)
    events_of(new)
    assert windows_of_stored(new, num_tokens=2) == [12, 16, 12, 16]


def windows_of_stored(llm: Any, num_tokens: int) -> list[int]:
    run(llm, range(8), num_tokens=num_tokens)
    return [e["window_size"] for e in events_of(llm) if e["data"]["type"] == "stored"]


def test_attention_dp_ranks_have_trees_and_numbers_of_their_own(double: Any) -> None:
    from tensorrt_llm.llmapi import SchedulingParams

    llm = make_llm(tensor_parallel_size=2, enable_attention_dp=True)
    pins = [SchedulingParams(attention_dp_rank=rank) for rank in (0, 1, 1)]
    found = [run(llm, range(9), scheduling_params=pin).cached_tokens for pin in pins]
    assert found == [0, 0, 8]
    told = [(e["attention_dp_rank"], e["event_id"], e["data"]["type"]) for e in events_of(llm)]
    assert sorted(told) == [
        (0, 0, "created"),
        (0, 1, "stored"),
        (0, 2, "stored"),
        (1, 0, "created"),
        (1, 1, "stored"),
        (1, 2, "stored"),
    ]


def test_a_rank_that_is_not_there(double: Any) -> None:
    from tensorrt_llm.llmapi import SchedulingParams

    llm = make_llm(tensor_parallel_size=2, enable_attention_dp=True)
    with pytest.raises(ValueError, match="attention_dp_rank 2"):
        run(llm, range(9), scheduling_params=SchedulingParams(attention_dp_rank=2))


def test_unpinned_requests_go_round(double: Any) -> None:
    llm = make_llm(tensor_parallel_size=2, enable_attention_dp=True)
    for start in range(4):
        run(llm, range(start * 9, start * 9 + 5))
    stored = [e["attention_dp_rank"] for e in events_of(llm) if e["data"]["type"] == "stored"]
    assert sorted(stored) == [0, 0, 0, 0, 1, 1, 1, 1]


def test_hashes_are_unsigned(double: Any) -> None:
    llm = make_llm(num_blocks=64)
    run(llm, range(200))
    names = [name for event in events_of(llm)[1:] for name in hashes_of(event)]
    assert all(0 <= name < 2**64 for name in names)
    assert any(name >= 2**63 for name in names)


def test_events_on_the_way_may_be_lost_or_empty(double: Any) -> None:
    double.configure(is_proxy=False, falsy_event_every=1)
    llm = make_llm()
    llm.faults.lose_events(1)
    run(llm, range(9))
    run(llm, range(20, 29))
    told = llm.get_kv_cache_events(0)
    assert [event.get("event_id") for event in told] == [0, 2, None, 3, None, 4, None]
