"""The double's faults and statistics: death, hangs, slowness, figures that cannot be."""

from __future__ import annotations

import asyncio
import time
from types import ModuleType
from typing import Any

import pytest

from tests.trtllm_calls import events_of, make_llm, run, sampling


@pytest.fixture
def double(trtllm_double: ModuleType) -> Any:
    trtllm_double.double.configure(is_proxy=False)
    return trtllm_double.double


def test_a_start_that_fails(double: Any) -> None:
    double.configure(fail_start="CUDA out of memory")
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        make_llm()
    assert double.running() == []


async def test_death_in_one_process_fails_what_waits(double: Any) -> None:
    from tensorrt_llm.executor import RequestError

    llm = make_llm(num_blocks=900)
    out = llm.generate_async([1, 2, 3], sampling(max_tokens=3000))
    llm.faults.die("CUDA error: lost")
    with pytest.raises(RequestError, match="Event loop terminated with error: CUDA error: lost"):
        await out
    for _ in range(2):
        with pytest.raises(RuntimeError, match="CUDA error: lost"):
            llm.generate_async([1], sampling())
    assert not llm._check_health()
    assert llm.get_stats(60) == []


async def test_death_behind_a_proxy_lets_what_waits_hang(double: Any) -> None:
    double.configure(is_proxy=True, die_on=(7, 8))
    llm = make_llm()
    out = llm.generate_async([6, 7, 8, 9], sampling())
    await died(llm)
    assert not out.queue._items
    with pytest.raises(RuntimeError, match="illegal memory access"):
        llm.generate_async([1], sampling())


async def died(llm: Any) -> None:
    """A test's time limit bounds the wait."""
    while llm._check_health():
        await asyncio.sleep(0)


async def test_a_hanging_engine_looks_healthy(double: Any) -> None:
    double.configure(is_proxy=False, hang_on=(7, 8))
    llm = make_llm()
    out = llm.generate_async([6, 7, 8, 9], sampling())
    while not llm.faults.is_hanging:
        await asyncio.sleep(0)
    later = llm.generate_async([1], sampling())
    later.abort()
    assert (llm._check_health(), out.finished, later.finished) == (True, False, False)
    assert [event["event_id"] for event in llm.get_kv_cache_events(0)] == [0]
    llm.faults.resume()
    assert (await out).finished
    assert (await later).outputs[0].finish_reason in {"cancelled", "length"}


def test_shutdown_of_a_hanging_engine_ends(double: Any) -> None:
    double.configure(is_proxy=False, hang_on=(7, 8))
    llm = make_llm()
    llm.faults.hang()
    outs = [llm.generate_async([7, 8], sampling(max_tokens=9)) for _ in range(2)]
    llm.shutdown()
    assert not llm._check_health()
    assert [out.result().outputs[0].finish_reason for out in outs] == ["cancelled", "cancelled"]


def test_slowness(double: Any) -> None:
    double.configure(is_proxy=False, decode_ms=1.0, slow_factor=5.0)
    llm = make_llm(enable_iter_perf_stats=True)
    run(llm, [1, 2, 3], num_tokens=3)
    _, *decodes = llm.get_stats(0)
    assert [stats["iterLatencyMS"] >= 5.0 for stats in decodes] == [True, True]


def test_reading_waits_for_the_first_item(double: Any) -> None:
    llm = make_llm()
    events_of(llm)
    started_at = time.monotonic()
    assert llm.get_kv_cache_events(0.15) == []
    assert time.monotonic() - started_at >= 0.15
    run(llm, range(9))
    assert len(llm.get_kv_cache_events(60)) == 2


def test_statistics(double: Any) -> None:
    double.configure(version="1.3.0rc27", is_proxy=False)
    llm = make_llm(enable_iter_perf_stats=True)
    run(llm, range(9), num_tokens=3)
    first, second, third = llm.get_stats(0)
    assert llm.get_stats(0) == []
    assert [stats["iter"] for stats in (first, second, third)] == [0, 1, 2]
    assert first["kvCacheStats"] == {
        "maxNumBlocks": 8,
        "freeNumBlocks": 5,
        "usedNumBlocks": 3,
        "tokensPerBlock": 4,
        "allocTotalBlocks": 3,
        "allocNewBlocks": 3,
        "reusedBlocks": 0,
        "missedBlocks": 3,
        "cacheHitRate": 0.0,
    }
    assert first["inflightBatchingStats"]["numCtxTokens"] == 9
    counts = [stats["inflightBatchingStats"]["numContextRequests"] for stats in (first, second)]
    assert counts == [1, 0]
    active = [(s["numActiveRequests"], s["numQueuedRequests"]) for s in (first, second, third)]
    assert active == [(1, 0), (1, 0), (0, 0)]
    assert [s["numCompletedRequests"] for s in (first, second, third)] == [0, 0, 1]
    assert third["kvCacheStats"]["freeNumBlocks"] == 8
    assert (first["attentionDpRank"], first["schedulerMode"]) == (0, "overlap")
    assert first["kvCacheIterationStats"]["32"]["iterMissedBlocks"] == 3
    assert second["kvCacheIterationStats"]["32"]["iterMissedBlocks"] == 0


def test_a_second_request_counts_what_it_reuses(double: Any) -> None:
    llm = make_llm(enable_iter_perf_stats=True)
    run(llm, range(9))
    run(llm, range(9))
    cache = llm.get_stats(0)[-1]["kvCacheStats"]
    assert (cache["reusedBlocks"], cache["missedBlocks"], cache["cacheHitRate"]) == (2, 4, 1 / 3)
    assert "kvCacheIterationStats" not in llm.get_stats(0)


def test_statistics_must_be_asked_for(double: Any) -> None:
    llm = make_llm()
    run(llm, range(9))
    assert llm.get_stats(0) == []


def test_old_statistics_are_dropped(double: Any) -> None:
    llm = make_llm(enable_iter_perf_stats=True, iter_stats_max_iterations=2)
    run(llm, range(9), num_tokens=5)
    assert [stats["iter"] for stats in llm.get_stats(0)] == [3, 4]


def test_statistics_that_cannot_be(double: Any) -> None:
    llm = make_llm(enable_iter_perf_stats=True)
    llm.faults.has_impossible_stats = True
    run(llm, range(9))
    cache = llm.get_stats(0)[0]["kvCacheStats"]
    assert (cache["usedNumBlocks"], cache["freeNumBlocks"]) == (-3, 11)


async def test_each_dp_rank_has_statistics(double: Any) -> None:
    from tensorrt_llm.llmapi import SchedulingParams

    double.configure(version="1.3.0rc27", is_proxy=False)
    llm = make_llm(tensor_parallel_size=2, enable_attention_dp=True, enable_iter_perf_stats=True)
    pin = SchedulingParams(attention_dp_rank=1)
    await llm.generate_async([1], sampling(), scheduling_params=pin)
    assert [stats["attentionDpRank"] for stats in llm.get_stats(0)] == [1]
