"""Iteration statistics: what is believed, and what is not."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from controllers.events import Iteration
from serve_app.executors.trtllm_stats import RankStats, by_rank


def stats(**changes: Any) -> dict[str, Any]:
    batch = {"numCtxTokens": 20, "numGenRequests": 0, "numContextRequests": 1}
    found = {
        "iter": 0,
        "iterLatencyMS": 4.0,
        "kvCacheStats": {"maxNumBlocks": 7934, "usedNumBlocks": 5, "freeNumBlocks": 7929},
        "inflightBatchingStats": {**batch, **changes.pop("batch", {})},
    }
    found["kvCacheStats"].update(changes.pop("blocks", {}))
    return {**found, **changes}


def fed(*items: dict[str, Any]) -> RankStats:
    rank = RankStats()
    for item in items:
        rank.feed(item)
    return rank


def test_figures() -> None:
    rank = fed(stats())
    assert (rank.num_used, rank.num_bad_figures) == (5, 0)
    assert rank.take_iterations() == [Iteration(20, 0, 5, 4.0)]
    assert rank.take_iterations() == []
    rank.forget()
    assert rank.num_used is None


def test_equal_iterations_are_one_sample() -> None:
    decode = {"numCtxTokens": 0, "numGenRequests": 3}
    rank = fed(stats(batch=decode, iterLatencyMS=2.0), stats(batch=decode, iterLatencyMS=4.0))
    assert rank.take_iterations() == [Iteration(0, 3, 5, 3.0, 2)]


def test_under_the_overlap_scheduler_a_latency_spans_two_loops() -> None:
    assert fed(stats(schedulerMode="overlap")).take_iterations() == [Iteration(20, 0, 5, 2.0)]
    assert fed(stats(schedulerMode="non_overlap")).take_iterations() == [Iteration(20, 0, 5, 4.0)]


@pytest.mark.parametrize("used", [-2, 7935, "5", 1.5, True])
def test_impossible_blocks_are_not_believed(used: object) -> None:
    """A used count of -2 of 7934 has been seen."""
    rank = fed(stats(), stats(blocks={"usedNumBlocks": used}))
    assert (rank.num_used, rank.num_bad_figures) == (5, 1)


def test_an_impossible_figure_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rank = fed(*[stats(blocks={"usedNumBlocks": -2})] * 3, stats(batch={"numGenRequests": -1}))
    assert [record.getMessage() for record in caplog.records] == [
        "TensorRT-LLM says usedNumBlocks is -2: not believed (said once)",
        "TensorRT-LLM says numGenRequests is -1: not believed (said once)",
    ]
    assert rank.num_bad_figures == 4


@pytest.mark.parametrize("ms", [-1.0, 1e9, "4", float("nan")])
def test_impossible_times_are_not_samples(ms: object) -> None:
    rank = fed(stats(iterLatencyMS=ms))
    assert (rank.take_iterations(), rank.num_bad_figures) == ([], 1)


@pytest.mark.parametrize(
    "item",
    [
        {},
        {"iterLatencyMS": 3.0},
        {"kvCacheStats": None, "inflightBatchingStats": 5},
        stats(batch={"numCtxTokens": 0}),  # an iteration without work
        {"inflightBatchingStats": {"numCtxTokens": 3}, "iterLatencyMS": 3.0},
    ],
)
def test_what_is_absent_is_not_a_fault(item: dict[str, Any]) -> None:
    rank = fed(item)
    assert (rank.take_iterations(), rank.num_bad_figures) == ([], 0)


def test_ranks() -> None:
    items: list[Any] = [{"iter": 0}, None, {}, {"iter": 1, "attentionDpRank": 2}]
    items += [{"attentionDpRank": "x"}, "no object", [1], 5]
    assert by_rank(items) == [(0, items[0]), (2, items[3]), (0, items[4])]
