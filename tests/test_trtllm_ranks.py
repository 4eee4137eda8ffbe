"""Which rank an event or a figure belongs to."""

from __future__ import annotations

import logging

import pytest

from controllers.events import Lost, Stored
from serve_app.executors.trtllm_ranks import Ranks
from serve_app.executors.trtllm_requests import Requests
from tests.trtllm_events import Log

B = 4
TOKENS = [0, 1, 2, 3]


@pytest.fixture
def ranks() -> Ranks:
    return Ranks(2, B, Requests(B), buffer_size=4)


def test_ranks_have_histories_of_their_own(ranks: Ranks) -> None:
    first, second = Log(is_new=True, dp_rank=0), Log(is_new=True, dp_rank=1)
    events = [first.created(8, 0), second.created(8, 0), second.stored(None, TOKENS), {}, None]
    assert ranks.take(events, now=1.0)
    assert not ranks.take([{}, None], now=1.0)
    assert ranks[0].buffer.drain(0) == []
    assert [type(event) for event in ranks[1].buffer.drain(0)] == [Stored]


def test_a_rank_that_should_not_be_there(ranks: Ranks, caplog: pytest.LogCaptureFixture) -> None:
    strange = Log(is_new=True, dp_rank=7)
    for _ in range(2):
        assert not ranks.take([strange.stored(None, TOKENS)], now=1.0)
    assert ranks.num_foreign == 2
    assert [record.getMessage() for record in caplog.records] == [
        "TensorRT-LLM tells events of rank 7, there are 2"
    ]
    assert ranks.feed([{"attentionDpRank": 7, "kvCacheStats": {"usedNumBlocks": 3}}, {}])
    assert [ranks[at].stats.num_used for at in (0, 1)] == [None, None]


@pytest.mark.parametrize("event", ["text", {"attention_dp_rank": "x"}])
def test_what_has_no_rank_is_a_hole_of_the_first(event: object, ranks: Ranks) -> None:
    ranks.take([event], now=1.0)  # type: ignore[list-item]
    assert ranks[0].buffer.drain(0) == [Lost(reason="unreadable_event", first=0, last=0)]
    assert ranks[1].buffer.drain(0) == []


def test_losses_are_counted_in_the_log(ranks: Ranks, caplog: pytest.LogCaptureFixture) -> None:
    log = Log(is_new=True, dp_rank=1)
    log.skip(3)
    with caplog.at_level(logging.WARNING):
        ranks.take([log.stored(None, TOKENS)], now=1.0)
        ranks.take([log.removed(1)], now=1.0)
    assert [record.getMessage() for record in caplog.records] == [
        "rank 1: TensorRT-LLM lost 3 cache events (enlarge executor.trtllm.event_buffer_max_size)"
    ]


def test_a_full_buffer_says_so(ranks: Ranks) -> None:
    log = Log(is_new=True)
    ranks.take([log.stored(None, [at, at, at, at]) for at in range(6)], now=1.0)
    lost, *kept = ranks[0].buffer.drain(0)
    assert lost == Lost(reason="buffer_overflow", first=0, last=1)
    assert [type(event) for event in kept] == [Stored] * 4
