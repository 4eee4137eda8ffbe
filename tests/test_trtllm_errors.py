"""Texts of TensorRT-LLM's errors, as ours."""

from __future__ import annotations

import pytest

from controllers.errors import (
    CachelaneError,
    ExecutorDead,
    ExecutorError,
    InvalidRequest,
    PromptTooLong,
)
from serve_app.executors.trtllm_errors import run_error, submit_error


class RequestError(RuntimeError):
    pass


TOO_LONG = [
    "The sum of prompt length (72417.0), query length (0) should not exceed max_num_tokens (8192)",
    "The prompt length (72417.0) should not exceed max_num_tokens (69632)",
    "`default_max_tokens` (-3) must be greater than 0, `default_max_tokens` (-3) = max_seq_len (9)",
    "Request length 9000 exceeds maximum sequence length 8192",
]


@pytest.mark.parametrize("text", TOO_LONG)
@pytest.mark.parametrize("kind", [RequestError, ValueError])
def test_a_prompt_that_is_too_long(text: str, kind: type[Exception]) -> None:
    for error in (submit_error(kind(text)), run_error(kind(text))):
        assert type(error) is PromptTooLong
        assert error.code == "context_length_exceeded"
        assert error.message == text


@pytest.mark.parametrize(
    "text",
    [
        "LLM is shutting down",
        "Event loop terminated with error: CUDA error: out of memory",
        "CUDA error: an illegal memory access was encountered",
        "The executor has been shutdown",
        "worker process 3 died unexpectedly",
    ],
)
def test_death(text: str) -> None:
    assert type(submit_error(RuntimeError(text))) is ExecutorDead
    assert str(run_error(RequestError(text))) == f"TensorRT-LLM died: {text}"


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (ValueError("top_k = -1"), InvalidRequest, "the engine refuses the request: top_k = -1"),
        (TypeError("no"), InvalidRequest, "the engine refuses the request: no"),
        (RequestError("odd"), ExecutorError, "TensorRT-LLM failed: odd"),
        (AssertionError(), ExecutorError, "TensorRT-LLM failed: AssertionError"),
        (
            RuntimeError("Can't allocate new blocks. No free blocks left."),
            ExecutorError,
            "the KV cache cannot hold the request: Can't allocate new blocks. No free blocks left.",
        ),
    ],
)
def test_others(error: Exception, expected: type[CachelaneError], message: str) -> None:
    found = submit_error(error)
    assert type(found) is expected
    assert str(found) == message


def test_a_message_is_one_line_of_bounded_length() -> None:
    error = run_error(RuntimeError("\n  what\n1 0x7f in libtensorrt_llm.so\n"))
    assert str(error) == "TensorRT-LLM failed: what"
    assert len(str(run_error(RuntimeError("x" * 9999)))) < 600
