"""Requests on their way through a TensorRT-LLM engine: one task for each sequence, on the loop.

Owns submitting, reading responses, siblings and aborts. Every request is several engine requests of
one sequence: the first computes the prompt, its siblings start when the prompt is in the cache.
Copies of a greedy sequence are not computed at all. Knows neither threads nor events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from controllers.blocks import as_token_array, block_hashes
from controllers.errors import (
    CachelaneError,
    ExecutorDead,
    ExecutorError,
    InvalidRequest,
    RequestAborted,
)
from serve_app.executors.base import GenerateRequest, TokenChunk
from serve_app.executors.streams import Streams
from serve_app.executors.trtllm_answers import Response, response_of
from serve_app.executors.trtllm_books import Books, EngineSequence
from serve_app.executors.trtllm_errors import run_error
from serve_app.executors.trtllm_port import EnginePort, Handle
from serve_app.executors.trtllm_sampling import is_greedy, logprobs_of

logger = logging.getLogger(__name__)


class Run:
    """A sequence with its task and its handle. `indices` are the copies it answers for."""

    def __init__(self, seq: EngineSequence, handle: Handle, indices: Sequence[int]) -> None:
        self.seq = seq
        self.handle = handle
        self.indices = indices
        self.task: asyncio.Task[None] | None = None
        self.is_aborted = False
        self.timer: asyncio.TimerHandle | None = None  # of the abort


class Runs:
    """`on_reuse(seq, num_cached_tokens)` at each first response, `on_end(key)` after the last
    sequence of a request, `on_death` when the engine says that it died. `overlap(hashes, rank)`:
    blocks at the start of a prompt that are believed to be cached."""

    def __init__(
        self,
        engine: EnginePort,
        streams: Streams,
        books: Books,
        *,
        block_size: int,
        eos_ids: Sequence[int],
        abort_timeout_s: float,
        overlap: Callable[[Sequence[int], int], int],
        on_start: Callable[[GenerateRequest, Sequence[int]], None],
        on_reuse: Callable[[EngineSequence, int], None],
        on_end: Callable[[str], None],
        on_death: Callable[[ExecutorDead], None],
    ) -> None:
        self._engine = engine
        self._streams = streams
        self._books = books
        self._block_size = block_size
        self._eos_ids = tuple(eos_ids)
        self._abort_timeout_s = abort_timeout_s
        self._overlap = overlap
        self._on_start = on_start
        self._on_reuse = on_reuse
        self._on_end = on_end
        self._on_death = on_death
        self._key_to_runs: dict[str, list[Run]] = {}

    def start(self, request: GenerateRequest) -> None:
        """`request_id` is the stream's key. Raises what submitting raises."""
        tokens = as_token_array(request.token_ids)
        hashes = block_hashes(tokens, self._block_size, request.salt)
        self._on_start(request, hashes)
        try:
            indices = range(request.sampling.n) if is_greedy(request.sampling) else (0,)
            self._submit(request, hashes, indices, None)
        except CachelaneError as error:
            self._on_end(request.request_id)
            if isinstance(error, ExecutorDead):
                self._on_death(error)
            raise

    def withdraw(self, key: str) -> None:
        """Ends a request that nobody waits for. The engine may take a while to let go of it."""
        for run in self._key_to_runs.get(key, []):
            self._abort(run)

    def cancel_all(self) -> None:
        """After the engine's death or end: nothing more comes."""
        for run in [run for runs in self._key_to_runs.values() for run in runs]:
            if run.task is not None:
                run.task.cancel()
            self._finish(run)  # a task that has not begun yet would never do it

    def _submit(
        self,
        request: GenerateRequest,
        hashes: Sequence[int],
        indices: Sequence[int],
        leader: EngineSequence | None,
    ) -> None:
        index, num_tokens = indices[0], len(request.token_ids) // 4
        num_cached = self._overlap(hashes, request.dp_rank) * self._block_size
        num_resident = max(num_cached, self._num_coming(hashes, request.dp_rank))
        handle = self._engine.submit(request, index, num_resident)
        seq = EngineSequence(
            request=request,
            index=index,
            num_prompt_tokens=num_tokens,
            num_uncached=max(1, num_tokens - num_cached),
            hashes=hashes,
            submitted_at=self._books.clock(),
            num_cached=0 if leader is None else leader.num_cached,
        )
        run = Run(seq, handle, indices)
        self._books.add(seq)
        self._key_to_runs.setdefault(request.request_id, []).append(run)
        run.task = asyncio.get_running_loop().create_task(self._follow(run))

    def _num_coming(self, hashes: Sequence[int], dp_rank: int) -> int:
        """Tokens of a prompt that other requests are about to store. It matters only to engines
        that do not bear another retention for what is cached."""
        if self._engine.features.has_safe_updates:
            return 0
        return self._books.num_shared(hashes, dp_rank) * self._block_size

    async def _follow(self, run: Run) -> None:
        try:
            async for output in run.handle:
                self._books.sign_of_life()
                self._on_output(run, output)
                if output.finished:
                    return
            raise RuntimeError("the sequence ended without a last response")
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._on_error(run, error)
        finally:
            self._finish(run)

    def _finish(self, run: Run) -> None:
        """Once for each; later calls have no effect."""
        key = run.seq.request.request_id
        runs = self._key_to_runs.get(key, [])
        if run not in runs:
            return
        self._books.remove(run.seq)
        if run.timer is not None:
            run.timer.cancel()
        runs.remove(run)
        if not runs:
            del self._key_to_runs[key]
            self._on_end(key)

    def _on_error(self, run: Run, error: Exception) -> None:
        if run.is_aborted and not isinstance(run_error(error), ExecutorDead):
            return
        failure = run_error(error)
        if not isinstance(failure, InvalidRequest):
            logger.error("request in TensorRT-LLM failed: %r", error)
        if isinstance(failure, ExecutorDead):
            self._on_death(failure)
        self._fail(run, failure)

    def _fail(self, run: Run, error: CachelaneError) -> None:
        """The others of its request end with it."""
        key = run.seq.request.request_id
        self._streams.fail(key, error)
        for other in self._key_to_runs.get(key, []):
            if other is not run:
                self._abort(other)

    def _on_output(self, run: Run, output: Any) -> None:
        seq = run.seq
        ends = {*seq.request.sampling.stop_token_ids}
        if not seq.request.sampling.ignore_eos:
            ends.update(self._eos_ids)
        default_end = self._eos_ids[0] if self._eos_ids else None
        response = response_of(output, seq.num_generated, ends, default_end)
        if response.finish == "cancelled":
            self._fail(run, RequestAborted("the engine cancelled the request"))
        elif response.finish == "timeout":
            self._fail(run, ExecutorError("the request timed out in the engine"))
        elif response.token_ids or response.finish is not None:
            self._push(run, response)

    def _push(self, run: Run, response: Response) -> None:
        seq, num_cached = run.seq, response.num_cached_tokens
        is_first = seq.first_at is None
        queue_ms = self._books.first_response(seq, num_cached) if is_first else None
        if is_first and not seq.index:
            seq.num_cached = num_cached
        seq.num_generated += len(response.token_ids)
        num_top = seq.request.sampling.logprobs
        logprobs = () if num_top is None else logprobs_of(*response[:2], num_top)
        for index in run.indices:
            is_opening = is_first and not index
            chunk = TokenChunk(
                token_ids=response.token_ids,
                index=index,
                logprobs=logprobs,
                finish_reason=response.finish,
                stop_token_id=response.stop_token_id,
                cached_tokens=seq.num_cached if is_opening or response.finish else None,
                queue_ms=queue_ms if is_opening else None,
            )
            self._streams.push(seq.request.request_id, chunk)
        if is_first:
            self._on_reuse(seq, num_cached)
            self._start_siblings(run)

    def _start_siblings(self, run: Run) -> None:
        request = run.seq.request
        if run.seq.index or len(run.indices) == request.sampling.n or run.is_aborted:
            return
        try:
            for index in range(1, request.sampling.n):
                self._submit(request, run.seq.hashes, (index,), run.seq)
        except CachelaneError as error:
            self._fail(run, error)

    def _abort(self, run: Run) -> None:
        if run.is_aborted:
            return
        run.is_aborted = True
        loop = asyncio.get_running_loop()
        run.timer = loop.call_later(self._abort_timeout_s, self._give_up, run)
        try:
            run.handle.abort()
        except Exception as error:
            self._on_error(run, error)

    def _give_up(self, run: Run) -> None:
        if run.task is not None and not run.task.done():
            logger.error(
                "TensorRT-LLM did not let go of a request within %g s of its abort",
                self._abort_timeout_s,
            )
            run.task.cancel()
