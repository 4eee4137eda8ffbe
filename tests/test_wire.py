from __future__ import annotations

import pytest

from controllers.errors import (
    CachelaneError,
    ExecutorDead,
    ExecutorError,
    InvalidRequest,
    NotReady,
    Overloaded,
    PromptTooLong,
    WorkerFull,
)
from controllers.retention import Retention, TokenRange
from serve_app.executors.base import GenerateRequest, SamplingParams, TokenChunk, TokenLogprob
from serve_app.wire import (
    Call,
    decode_answer,
    decode_call,
    encode_call,
    encode_chunks,
    encode_failure,
)


def test_a_call_comes_back_as_it_was() -> None:
    request = GenerateRequest(
        request_id="r",
        token_ids=b"\x01\x00\x00\x00",
        sampling=SamplingParams(max_tokens=3, seed=7, logit_bias={5: -1.5}, stop_token_ids=(2,)),
        retention=Retention((TokenRange(0, 8, 90, 2.5), TokenRange(8, None, 10)), 20, 1.5),
        salt=2**64 - 1,
        tier="chat",
        tenant="t",
    )
    call = Call(request, 17, 120.0, 60.0, tenant_weight=3.0, max_wait_s=0.25)
    assert decode_call(encode_call(call)) == call


def test_chunks_come_back_as_they_were() -> None:
    chunks = [
        TokenChunk(token_ids=(1, 2), cached_tokens=64, queue_ms=0.5),
        TokenChunk(
            token_ids=(3,),
            index=1,
            logprobs=(TokenLogprob(-0.5, ((3, -0.5), (4, -1.0))),),
            finish_reason="stop",
            stop_token_id=2,
        ),
    ]
    assert decode_answer(encode_chunks(chunks)) == chunks


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("prompt", "is empty"),
        PromptTooLong("messages", "too long", "context_length_exceeded"),
        NotReady("loading", 2.5),
        Overloaded("full", 3.0),
        WorkerFull("one is full", 3.0),
        ExecutorDead("gone"),
    ],
)
def test_an_error_is_raised_as_the_class_it_was(error: CachelaneError) -> None:
    with pytest.raises(CachelaneError) as raised:
        decode_answer(encode_failure(error))
    assert type(raised.value) is type(error)
    assert (str(raised.value), raised.value.__dict__) == (str(error), error.__dict__)


def test_an_error_outside_the_tree_becomes_an_executor_error() -> None:
    class Odd(CachelaneError):
        pass

    with pytest.raises(ExecutorError, match="what") as raised:
        decode_answer(encode_failure(Odd("what")))
    assert type(raised.value) is ExecutorError
