"""What a request returns: one cumulative object that grows with every response it takes.

Responses are taken by whoever awaits, not when they arrive. As in the real package:
1. `*_diff` of an output is what its own last response added. With n > 1 a response grows one output
   and leaves the others, with their diffs, as they were.
2. A finish reason is set by the request's final response, for the sequence that ended last. Others
   keep None, unless they were cancelled.
3. A token from stop_token_ids is cut off again, an end_id is not; log probabilities stay.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Protocol

from tensorrt_llm.double.responses import ErrorResponse, Response, ResponseQueue
from tensorrt_llm.double.settings import current
from tensorrt_llm.sampling_params import SamplingParams


@dataclass(slots=True)
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One generated sequence."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    prompt_logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    generation_logits: Any = None
    additional_context_outputs: dict[str, Any] | None = None
    additional_generation_outputs: dict[str, Any] | None = None
    disaggregated_params: Any = None
    request_perf_metrics: Any = None
    _last_text_len: int = field(default=0, init=False, repr=False)
    _last_token_ids_len: int = field(default=0, init=False, repr=False)
    _last_logprobs_len: int = field(default=0, init=False, repr=False)

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def text_diff(self) -> str:
        return self.text[self._last_text_len :]

    @property
    def token_ids_diff(self) -> list[int]:
        return self.token_ids[self._last_token_ids_len :]

    @property
    def logprobs_diff(self) -> list[dict[int, Logprob]]:
        return self.logprobs[self._last_logprobs_len :]


class Owner(Protocol):
    """The executor, as a result needs it."""

    def abort_request(self, request_id: int) -> None: ...

    def handle_background_error(self, message: str | None = None) -> None: ...


class RequestOutput:
    """Await it, iterate over it (streaming), or call `result`."""

    def __init__(
        self,
        request_id: int,
        prompt: str | None,
        prompt_token_ids: list[int],
        sampling_params: SamplingParams,
        owner: Owner,
        decode: Callable[[list[int]], str] | None,
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.outputs = [CompletionOutput(i) for i in range(sampling_params.n)]
        self.context_logits = None
        self.disaggregated_params = None
        self.cached_tokens = 0
        self.decoding_iter = 0
        self.avg_decoded_tokens_per_iter: float | None = None
        self.metrics_dict: dict[str, float] = {}
        self.finished = False
        self.sampling_params = sampling_params
        self.queue = ResponseQueue()
        if current().parsed.is_new:
            self.error: str | None = None
        self._owner = owner
        self._decode = decode
        self._is_aborted = False

    def abort(self) -> None:
        """Takes effect later: a last response, `cancelled`, says so."""
        self._owner.abort_request(self.request_id)
        self._is_aborted = True

    def aborted(self) -> bool:
        return self._is_aborted

    def result(self, timeout: float | None = None) -> RequestOutput:
        """`timeout` is accepted and, as in the code that was read, not looked at."""
        while not self.finished:
            self._take(self.queue.get())
        return self

    async def aresult(self) -> RequestOutput:
        while not self.finished:
            self._take(await self.queue.aget())
        return self

    def __await__(self) -> Generator[Any, None, RequestOutput]:
        return self.aresult().__await__()

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        if self.finished:
            raise StopAsyncIteration
        self._take(await self.queue.aget())
        return self

    def __iter__(self) -> RequestOutput:
        return self

    def __next__(self) -> RequestOutput:
        if self.finished:
            raise StopIteration
        self._take(self.queue.get())
        return self

    def _take(self, response: Response | ErrorResponse) -> None:
        if isinstance(response, ErrorResponse):
            if hasattr(self, "error"):
                self.error, self.finished = response.message, True
            self._owner.handle_background_error(response.message)
        assert isinstance(response, Response)
        self.finished = response.is_final
        self.decoding_iter = response.num_iterations
        self.cached_tokens = response.cached_tokens
        output = self.outputs[response.index]
        self._grow(output, response)
        if response.finish == "cancelled":
            output.finish_reason = "cancelled"
        elif self.finished:
            self._end(output, response.finish)
        self._write_texts()
        self._owner.handle_background_error()

    def _grow(self, output: CompletionOutput, response: Response) -> None:
        output._last_token_ids_len = len(output.token_ids)
        output._last_logprobs_len = len(output.logprobs)
        output.token_ids.extend(response.token_ids)
        for given in response.logprobs:
            tokens = {token: Logprob(value, at + 1) for at, (token, value) in enumerate(given.top)}
            output.logprobs.append(tokens)
            output.cumulative_logprob = (output.cumulative_logprob or 0.0) + given.chosen

    def _end(self, output: CompletionOutput, finish: str | None) -> None:
        output.finish_reason = "length" if finish == "length" else "stop"
        if finish != "stop_words":
            return
        output.stop_reason = output.token_ids[-1]
        if not self.sampling_params.include_stop_str_in_output:
            output.token_ids = output.token_ids[:-1]

    def _write_texts(self) -> None:
        if self._decode is None or not self.sampling_params.detokenize:
            return
        for output in self.outputs:
            output._last_text_len = len(output.text)
            output.text = self._decode(output.token_ids)


class IterationResult:
    """Statistics or events as an async iterable. How it ends depends on the version."""

    def __init__(self, items: list[Any], end: str) -> None:
        self._lines = [json.dumps(item) for item in items]
        self._end = end
        self._at = 0

    def get_results(self) -> list[Any]:
        rest, self._at = self._lines[self._at :], len(self._lines)
        return [json.loads(line) for line in rest]

    def __aiter__(self) -> IterationResult:
        return self

    async def __anext__(self) -> Any:
        if self._at < len(self._lines):
            self._at += 1
            return json.loads(self._lines[self._at - 1])
        if self._end == "queue_empty":
            raise asyncio.QueueEmpty
        if self._end == "index_error":
            raise IndexError("pop from an empty deque")
        raise StopAsyncIteration
