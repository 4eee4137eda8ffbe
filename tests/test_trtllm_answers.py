"""What TensorRT-LLM's objects answer, in the forms that its versions have."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from serve_app.executors.trtllm_answers import Response, drained, response_of

ENDS = {257, 9}


class Ending:
    """An iterator that ends as some version's does."""

    def __init__(self, items: list[Any], end: type[Exception]) -> None:
        self._items = items
        self._end = end

    def __iter__(self) -> Ending:
        return self

    def __next__(self) -> Any:
        if not self._items:
            raise self._end
        return self._items.pop(0)


class WithResults:
    def get_results(self) -> list[Any]:
        return [{"a": 1}]


@pytest.mark.parametrize("end", [StopIteration, asyncio.QueueEmpty, IndexError])
def test_iterators(end: type[Exception]) -> None:
    assert drained(Ending([{"a": 1}, '{"b": 2}', {}], end)) == [{"a": 1}, {"b": 2}, {}]


def test_a_text_that_is_no_json_is_left_for_the_reader() -> None:
    assert drained(["{", '{"a": 1}']) == ["{", {"a": 1}]


def test_other_forms() -> None:
    assert drained(None) == []
    assert drained([{"a": 1}, None]) == [{"a": 1}, None]
    assert drained(WithResults()) == [{"a": 1}]


def output(
    token_ids: list[int],
    finish: str | None = None,
    *,
    is_finished: bool | None = None,
    stop_reason: object = None,
    logprobs: list[Any] | None = None,
    **more: Any,
) -> Any:
    completion = SimpleNamespace(
        token_ids=token_ids, finish_reason=finish, stop_reason=stop_reason, logprobs=logprobs
    )
    finished = finish is not None if is_finished is None else is_finished
    return SimpleNamespace(outputs=[completion], finished=finished, cached_tokens=16, **more)


def test_only_new_tokens() -> None:
    """The object is the same every time and grows."""
    found = response_of(output([1, 2, 3], logprobs=["x", "y", "z"]), 1, ENDS, 257)
    assert found == Response((2, 3), ["y", "z"], None, None, 16)
    assert response_of(output([1, 2, 3]), 3, ENDS, 257) == Response((), [], None, None, 16)


@pytest.mark.parametrize(
    ("given", "tokens", "stop_id"),
    [
        (output([1, 2, 257], "stop"), (2,), 257),  # the end token stays in some versions
        (output([1, 2], "stop"), (2,), 257),  # and is cut off in others
        (output([1, 2], "stop", stop_reason=9), (2,), 9),  # a stop token always is
        (output([1], "stop"), (), 257),
        (output([1, 2], "length"), (2,), None),
        (output([1, 9], "length"), (9,), None),
    ],
)
def test_ends(given: Any, tokens: tuple[int, ...], stop_id: int | None) -> None:
    found = response_of(given, 1, ENDS, 257)
    assert (found.token_ids, found.stop_token_id) == (tokens, stop_id)


def test_a_reason_counts_only_at_the_end() -> None:
    """It may be set for one sequence while others run."""
    assert response_of(output([1], "length", is_finished=False), 0, ENDS, 257).finish is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (output([], error="no memory"), "no memory"),
        (output([], None, is_finished=True), "the sequence ended without a reason"),
    ],
)
def test_failures(given: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        response_of(given, 0, ENDS, 257)
