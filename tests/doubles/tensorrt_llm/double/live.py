"""The requests an engine works on, and what is to be said to those who wait for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from serve_app.engine.engine import Output
from serve_app.engine.sampler import Logprobs
from tensorrt_llm.double.requests import EngineRequest
from tensorrt_llm.double.responses import ErrorResponse, Response, ResponseQueue, Waker


@dataclass
class LiveSequence:
    """What was generated and not said yet."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    num_tokens: int = 0
    is_ended: bool = False


class LiveRequest:
    """A request of one rank. `queue` is where its responses go."""

    def __init__(self, request: EngineRequest, queue: ResponseQueue, rank: int) -> None:
        self.request = request
        self.queue = queue
        self.rank = rank
        self._sequences = [LiveSequence() for _ in range(request.sampling.n)]
        self._cached_tokens = 0
        self._num_iterations = 0

    @property
    def is_over(self) -> bool:
        return all(seq.is_ended for seq in self._sequences)

    def take(self, output: Output, *, has_end_id: bool) -> None:
        """One step's output of one sequence; answers when a response is due."""
        seq = self._sequences[output.index]
        self._num_iterations += 1
        if output.cached_tokens is not None:
            self._cached_tokens = output.cached_tokens
        finish = self._finish_of(output)
        if output.sample is not None:
            seq.tokens.append(output.sample.token_id)
            if output.sample.logprobs is not None:
                seq.logprobs.append(output.sample.logprobs)
        elif finish == "stop_words" or has_end_id:
            assert output.stop_token_id is not None
            seq.tokens.append(output.stop_token_id)
        seq.num_tokens += 1
        is_due = seq.num_tokens == 1 or seq.num_tokens % self.request.stream_interval == 0
        if finish is not None or (self.request.is_streaming and is_due):
            self._answer(output.index, finish)

    def cancel(self) -> None:
        for index, seq in enumerate(self._sequences):
            if not seq.is_ended:
                self._answer(index, "cancelled")

    def fail(self, message: str) -> None:
        self.queue.push(ErrorResponse(message))

    def _finish_of(self, output: Output) -> str | None:
        if output.finish_reason != "stop":
            return output.finish_reason
        is_end = output.stop_token_id == self.request.end_id
        return "end_id" if is_end else "stop_words"

    def _answer(self, index: int, finish: str | None) -> None:
        seq = self._sequences[index]
        seq.is_ended = finish is not None
        tokens, seq.tokens = seq.tokens, []
        logprobs, seq.logprobs = seq.logprobs, []
        self.queue.push(
            Response(
                index=index,
                token_ids=tokens,
                logprobs=logprobs,
                finish=finish,
                is_final=self.is_over,
                cached_tokens=self._cached_tokens,
                num_iterations=self._num_iterations,
            )
        )


class LiveRequests:
    """By id. Ended ones are gone."""

    def __init__(self, waker: Waker, *, has_end_id: bool) -> None:
        self._waker = waker
        self._has_end_id = has_end_id
        self._by_id: dict[str, LiveRequest] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, live: LiveRequest) -> None:
        self._by_id[live.request.request_id] = live

    def take(self, outputs: Iterable[Output]) -> None:
        queues = {}
        for output in outputs:
            live = self._by_id[output.request_id]
            live.take(output, has_end_id=self._has_end_id)
            queues[output.request_id] = live.queue
            if live.is_over:
                del self._by_id[output.request_id]
        self._waker.wake(queues.values())

    def cancel(self, request_id: str) -> None:
        """No effect if it is not there."""
        live = self._by_id.pop(request_id, None)
        if live is not None:
            live.cancel()
            self._waker.wake([live.queue])

    def cancel_all(self) -> None:
        for request_id in list(self._by_id):
            self.cancel(request_id)

    def fail_all(self, message: str) -> None:
        lives = list(self._by_id.values())
        self._by_id.clear()
        for live in lives:
            live.fail(message)
        self._waker.wake(live.queue for live in lives)
