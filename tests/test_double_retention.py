"""The double's retention configuration: checks, sorting, equality, pickling, and its effect."""

from __future__ import annotations

import pickle
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest

from tests.trtllm_calls import Range, brief, events_of, make_llm, retention, run

pytestmark = pytest.mark.usefixtures("trtllm_double")


@pytest.fixture
def config() -> Any:
    from tensorrt_llm.llmapi import KvCacheRetentionConfig

    return KvCacheRetentionConfig


def test_attributes(config: Any) -> None:
    given = retention((0, 30, 80, timedelta(seconds=5)), decode=(20, timedelta(seconds=1)))
    [first] = given.token_range_retention_configs
    assert (first.token_start, first.token_end, first.priority) == (0, 30, 80)
    assert first.duration_ms == timedelta(seconds=5)
    assert given.decode_retention_priority == 20
    assert given.decode_duration_ms == timedelta(seconds=1)
    assert given.transfer_mode.name == "DRAM"
    assert config([]).decode_retention_priority == config.kDefaultRetentionPriority == 35
    assert (config.kMinRetentionPriority, config.kMaxRetentionPriority) == (0, 100)


def test_ranges_are_sorted_and_may_touch_or_leave_gaps() -> None:
    given = retention((80, None, 10), (30, 50, 70), (0, 30, 80))
    starts = [part.token_start for part in given.token_range_retention_configs]
    assert starts == [0, 30, 80]


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ([(0, None, 80), (5, 9, 80)], "Invalid use of end indicator"),
        ([(-1, 9, 80)], "negative"),
        ([(9, 9, 80)], "positive length"),
        ([(9, 3, 80)], "positive length"),
        ([(0, 31, 80), (30, 50, 80)], "overlap"),
    ],
)
def test_ranges_that_are_refused(ranges: list[Range], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        retention(*ranges)


@pytest.mark.parametrize("priority", [-1, 101])
def test_priorities_that_are_refused(priority: int) -> None:
    with pytest.raises(RuntimeError, match=f"Invalid priority value {priority}"):
        retention((0, None, priority))
    with pytest.raises(RuntimeError, match="Invalid priority value"):
        retention(decode=(priority,))


def test_durations_are_timedeltas() -> None:
    with pytest.raises(TypeError, match="duration_ms is int"):
        retention((0, None, 80, 5000))
    with pytest.raises(TypeError, match="decode_duration_ms is float"):
        retention(decode=(80, 5.0))


def test_configurations_are_read_only_and_need_ranges(config: Any) -> None:
    with pytest.raises(AttributeError):
        config([]).decode_retention_priority = 3
    with pytest.raises(TypeError):
        config()


def test_equality_and_pickling() -> None:
    given = retention((0, 30, 80, timedelta(seconds=5)), (30, None, 50), decode=(20,))
    same = retention((30, None, 50), (0, 30, 80, timedelta(seconds=5)), decode=(20,))
    assert given == same
    assert pickle.loads(pickle.dumps(given)) == given
    assert given != retention((0, 30, 81, timedelta(seconds=5)), (30, None, 50), decode=(20,))
    assert given != retention((0, 30, 80, timedelta(seconds=5)), (30, None, 50), decode=(21,))


@pytest.mark.parametrize(
    ("block_size", "num_tokens", "ranges", "priorities"),
    [
        (64, 256, [(0, 64, 80), (64, 128, 50)], [80, 50, 35, 35]),
        (32, 127, [(0, 63, 80), (63, 127, 30)], [80, 80, 30, 30]),
        (32, 128, [(0, 1, 80), (1, 2, 5)], [80, 35, 35, 35]),
        (256, 192, [(0, 128, 80)], [80]),
        (64, 192, [(0, 65, 80), (65, 129, 30)], [80, 80, 30]),
        (64, 256, [(0, 64, 80), (129, None, 50)], [80, 35, 35, 50]),
        (64, 256, [(127, 193, 80)], [35, 35, 80, 80]),
        (64, 128, [(1, None, 80)], [35, 80]),
        (64, 32, [(127, 193, 80)], [35]),
    ],
)
def test_priorities_of_blocks(
    block_size: int, num_tokens: int, ranges: list[Range], priorities: list[int]
) -> None:
    """The mapping table: a block belongs to the range that holds its first token."""
    llm = make_llm(num_blocks=8, block_size=block_size)
    run(llm, [1] * num_tokens, kv_cache_retention_config=retention(*ranges))
    told = [
        block["priority"] for event in events_of(llm) for block in event["data"].get("blocks", [])
    ]
    assert told == priorities


def test_generated_blocks_have_the_decode_priority() -> None:
    llm = make_llm()
    kept = retention((0, None, 80), decode=(20,))
    run(llm, range(4), num_tokens=9, kv_cache_retention_config=kept)
    stored = [event["data"]["blocks"] for event in events_of(llm)[1:]]
    assert [[block["priority"] for block in blocks] for blocks in stored] == [[80, 20, 20]]


def test_reuse_with_another_priority_is_told(trtllm_double: ModuleType) -> None:
    trtllm_double.double.configure(version="1.3.0rc27", is_proxy=False)
    llm = make_llm()
    run(llm, range(9), kv_cache_retention_config=retention((0, None, 50)))
    events_of(llm)
    run(llm, range(9), kv_cache_retention_config=retention((0, None, 10)))
    assert brief(events_of(llm)) == [("priority", 50, 10), ("priority", 50, 10)]
    run(llm, range(9))
    assert events_of(llm) == []


def test_expiry_is_silent(trtllm_double: ModuleType) -> None:
    trtllm_double.double.configure(version="1.3.0rc27", is_proxy=False)
    llm = make_llm()
    short = retention((0, None, 80, timedelta(microseconds=1)))
    run(llm, range(9), kv_cache_retention_config=short)
    run(llm, range(100, 104))
    assert [kind for kind, *_ in brief(events_of(llm))] == ["created", "stored", "stored", "stored"]
    run(llm, range(9), kv_cache_retention_config=retention((0, None, 80)))
    assert brief(events_of(llm)) == [("priority", 35, 80), ("priority", 35, 80)]


@pytest.mark.parametrize("manager", [True, "auto"])
def test_the_v2_manager_ignores_retention(manager: object, trtllm_double: ModuleType) -> None:
    trtllm_double.double.configure(version="1.4.0rc1", is_proxy=False)
    llm = make_llm(use_kv_cache_manager_v2=manager)
    run(llm, range(9), kv_cache_retention_config=retention((0, None, 80)))
    run(llm, range(9), kv_cache_retention_config=retention((0, None, 10)))
    told = events_of(llm)
    assert {event["layer_group_id"] for event in told} == {0}
    assert [kind for kind, *_ in brief(told)] == ["created", "stored", "stored"]
    stored = [event["data"]["blocks"] for event in told[1:]]
    assert {block["priority"] for blocks in stored for block in blocks} == {35}
