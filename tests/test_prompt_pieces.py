"""Long prompts in pieces, without Ray: what is sent, and what the books say of it."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from controllers.blocks import as_token_array
from controllers.records import Decision
from controllers.retention import Retention, TokenRange
from serve_app.calls import ONE_TOKEN, cut, piece_of
from serve_app.executors.base import GenerateRequest, SamplingParams, TokenChunk
from serve_app.fleet import Ask, Route
from serve_app.wire import Call, decode_call
from tests.routing_rig import BLOCK_SIZE, Rig, ask

# Pieces of 4 x (64 - 8) tokens, for prompts with more than half as much again to compute.
EXECUTOR = {"block_size": BLOCK_SIZE, "max_batched_tokens": 64, "max_batch_size": 8}
SLICE = 224
LONG = [at % 997 for at in range(600)]  # two pieces and a rest of 152


class Router:
    """One request on a rig; `sent` says what its worker receives next."""

    def __init__(self, given: Ask, *replicas: str, **sections: dict[str, Any]) -> None:
        self.rig = Rig(*replicas, executor=EXECUTOR, **sections)
        self.rig.up(*(f"{replica}-0" for replica in replicas))
        self.routing = self.rig.routing
        self.request_id = given.request.request_id
        self.outcome = self.routing.begin(given, Route())

    def sent(self) -> Call:
        self.rig.place(self.request_id)
        return decode_call(self.routing.attempts.encode_call(self.request_id))

    def computed(self, worker: str, num_tokens: int) -> None:
        """Its blocks are there, as the log says, and the piece has ended."""
        self.rig.store(worker, LONG[:num_tokens])
        self.routing.attempts.piece_ended(self.request_id)

    def end(self, cached_tokens: int) -> Decision:
        self.outcome.on_chunk(TokenChunk(token_ids=(7,), cached_tokens=cached_tokens, queue_ms=2.0))
        self.routing.attempts.first_token(self.request_id)
        self.routing.finish(self.outcome, "ok")
        (record,) = self.rig.decisions()
        return record


def tokens_of(call: Call) -> list[int]:
    return [int(token) for token in as_token_array(call.request.token_ids)]


def test_a_long_prompt_goes_out_in_pieces_and_is_one_request_in_the_books() -> None:
    router = Router(ask("q", LONG), "a", tiers={"rules": {"interactive": {"max_ttft_ms": 9e5}}})
    first = router.sent()
    assert (first.request.request_id, tokens_of(first)) == ("q/1", LONG[:SLICE])
    assert (first.is_piece, first.uncached_tokens, first.request.sampling) == (True, 224, ONE_TOKEN)
    router.rig.now += 0.25
    router.computed("a-0", SLICE)
    assert router.rig.routing.describe()["routing"]["reserved"] == 0
    second = router.sent()
    assert (second.request.request_id, tokens_of(second)) == ("q/2", LONG[: 2 * SLICE])
    assert (second.uncached_tokens, second.waited_s, second.max_wait_s) == (224, 0.25, 899.75)
    router.computed("a-0", 2 * SLICE)
    rest = router.sent()
    assert rest.request == ask("q", LONG).request
    assert (rest.is_piece, rest.uncached_tokens) == (False, 152)
    record = router.end(cached_tokens=0)
    assert (record.num_pieces, record.num_attempts, record.prompt_tokens) == (2, 1, 600)
    assert (record.reason, record.predicted_cached_tokens, record.cached_tokens) == ("cold", 0, 0)
    assert record.predicted_ttft_ms > 1500.0  # of all of it: 200 ms for 64 tokens
    routing = router.routing.describe()["routing"]
    left = {name: routing[name] for name in ("in_flight", "waiting", "held", "reserved")}
    assert left == {"in_flight": 0, "waiting": 0, "held": 0, "reserved": 0}
    assert (routing["pieces"], routing["retries"], routing["decisions"]) == (2, 0, {"cold": 1})


def test_what_is_cached_already_is_in_no_piece() -> None:
    router = Router(ask("q", LONG), "a", "b")
    router.rig.store("b-0", LONG[:200])
    call = router.sent()
    assert (tokens_of(call), call.uncached_tokens) == (LONG[: 200 + SLICE], SLICE)
    assert router.outcome.route.worker == "b-0"


@pytest.mark.parametrize("num_tokens", [40, SLICE, 336])
def test_shorter_prompts_go_whole(num_tokens: int) -> None:
    assert not Router(ask("q", LONG[:num_tokens]), "a").sent().is_piece


def test_the_switch() -> None:
    assert not Router(ask("q", LONG), "a", routing={"slice_iterations": 0}).sent().is_piece


def test_others_wait_in_front_of_the_next_piece_only() -> None:
    """Between two pieces whoever has less to compute goes first."""
    router = Router(ask("q", LONG), "a")
    router.sent()
    router.computed("a-0", SLICE)
    router.routing.begin(ask("short", list(range(5000, 5080))), Route())
    assert router.rig.place("short") == "a"


def test_a_failed_piece_is_a_failed_attempt() -> None:
    router = Router(ask("q", LONG), "a", "b")
    router.sent()
    worker = router.outcome.route.worker
    router.computed(worker, SLICE)
    router.sent()
    router.rig.now += 3.0
    router.routing.attempts.failed("q")
    call = router.sent()
    assert router.outcome.route.worker == {"a-0": "b-0", "b-0": "a-0"}[worker]
    assert (call.request.request_id, tokens_of(call), call.waited_s) == ("q/2", LONG[:SLICE], 0.0)
    assert router.outcome.route.num_attempts == 2


def test_pieces_that_leave_nothing_are_given_up() -> None:
    """As when the cache is too small: what one computed is gone when the next one comes."""
    router = Router(ask("q", LONG), "a", routing={"route_ttl_s": 0.001})
    for _ in range(3):
        assert router.sent().is_piece
        router.rig.now += 1.0
        router.routing.attempts.piece_ended("q")
    assert not router.sent().is_piece
    assert router.end(cached_tokens=0).num_pieces == 3


def test_a_resumed_stream_may_be_cut_too() -> None:
    given = ask("q", LONG)
    resumed = msgspec.structs.replace(given.request, num_resumed=3)
    call = Router(msgspec.structs.replace(given, request=resumed), "a").sent()
    assert (call.is_piece, call.request.num_resumed) == (True, 0)


def test_a_piece_is_the_request_but_for_its_length_and_what_it_makes() -> None:
    ranges = (TokenRange(0, 8, 90, 60.0), TokenRange(8, 40, 70), TokenRange(40, None, 50, 30.0))
    whole = GenerateRequest(
        request_id="q",
        token_ids=np.arange(60, dtype=np.uint32).tobytes(),
        sampling=SamplingParams(max_tokens=9, n=2, logprobs=3, stop_token_ids=(4,), min_tokens=2),
        retention=Retention(ranges, 40, 20.0),
        salt=5,
        tier="agent",
        tenant="acme",
        dp_rank=1,
        adapter="lora",
        service_rank=2,
    )
    assert piece_of(whole, 16, 3) == msgspec.structs.replace(
        whole,
        request_id="q/3",
        token_ids=np.arange(16, dtype=np.uint32).tobytes(),
        sampling=ONE_TOKEN,
        retention=Retention((TokenRange(0, 8, 90, 60.0), TokenRange(8, 16, 70)), 40, 20.0),
    )
    assert cut(whole.retention, 8) == Retention((TokenRange(0, 8, 90, 60.0),), 40, 20.0)
    assert cut(whole.retention, 60) == whole.retention
    assert (ONE_TOKEN.max_tokens, ONE_TOKEN.n, ONE_TOKEN.logprobs) == (1, 1, None)


def test_pieces_on_one_worker_are_one_use_of_its_room() -> None:
    router = Router(ask("q", LONG), "a", "b")
    router.sent()
    worker, planned = router.outcome.route.worker, router.outcome.planned
    router.computed(worker, SLICE)
    router.sent()
    assert router.outcome.planned is planned
    router.routing.attempts.failed("q")
    router.sent()
    assert router.outcome.planned == (router.outcome.route.worker, Retention())
    assert router.outcome.route.worker != worker
