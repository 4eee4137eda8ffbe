"""What TensorRT-LLM's objects answer, as plain values. Imports none of its classes.

Getters of events and statistics differ in what they return and how it ends; a response is the same
cumulative object every time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class Response(NamedTuple):
    """What is new in one sequence. `finish`: stop, length, cancelled, timeout, or None."""

    token_ids: tuple[int, ...]
    logprobs: Sequence[Any]
    finish: str | None
    stop_token_id: int | None
    num_cached_tokens: int


def response_of(
    output: Any, num_seen: int, end_ids: Collection[int], default_end: int | None
) -> Response:
    """`num_seen` tokens were taken before. `end_ids` end the sequence; which of them did is not
    always said, then it is `default_end`. Raises RuntimeError with the engine's message."""
    message = getattr(output, "error", None)
    if message:
        raise RuntimeError(message)
    completion = output.outputs[0]
    token_ids = list(completion.token_ids[num_seen:])
    finish = completion.finish_reason if output.finished else None
    if output.finished and finish is None:
        raise RuntimeError("the sequence ended without a reason")
    stop_id = None
    if finish == "stop":
        stop_id = _cut_stop(completion.stop_reason, token_ids, end_ids, default_end)
    logprobs = (completion.logprobs or [])[num_seen : num_seen + len(token_ids)]
    cached = int(output.cached_tokens or 0)
    return Response(tuple(token_ids), logprobs, finish, stop_id, cached)


def _cut_stop(
    reason: object, token_ids: list[int], end_ids: Collection[int], default_end: int | None
) -> int | None:
    """The engine cuts off stop tokens itself, and its own end token not in every version."""
    if isinstance(reason, int):
        return reason
    if token_ids and token_ids[-1] in end_ids:
        return token_ids.pop()
    return default_end


def drained(result: Any) -> list[Mapping[str, Any] | None]:
    """Items of a getter's answer: a list, an object with `get_results`, or an iterator that ends as
    its version likes; some versions give JSON text for an item. A text that is none stays."""
    if hasattr(result, "get_results"):
        result = result.get_results()
    return [_parsed(item) if isinstance(item, str) else item for item in _items(result or ())]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _items(result: Iterable[Any]) -> Iterable[Any]:
    iterator = iter(result)
    while True:
        try:
            yield next(iterator)
        except (StopIteration, asyncio.QueueEmpty, IndexError):
            return
