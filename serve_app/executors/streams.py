"""The running requests of one executor: who waits for tokens, and what came for them.

Owns what closing, aborting and dying mean for those who wait. Knows no engine and no thread: every
method runs on the event loop of those who wait, except `end`, which may run anywhere.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable

import msgspec

from controllers.errors import (
    CachelaneError,
    ExecutorDead,
    ExecutorError,
    InvalidRequest,
    RequestAborted,
)
from serve_app.engine.engine import Output
from serve_app.executors.base import GenerateRequest, TokenChunk, TokenLogprob


class Stream:
    """Chunks of one request, then None, or an error.

    `key` is the request's name towards the engine. A request id may come again as soon as it was
    aborted, while outputs of its first life are still on their way.
    """

    def __init__(self, request: GenerateRequest, key: str) -> None:
        self.request = request
        self.key = key
        self.num_unfinished = request.sampling.n
        self._chunks: deque[TokenChunk] = deque()
        self._error: CachelaneError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_over(self) -> bool:
        return not self.num_unfinished or self._error is not None

    def push(self, chunk: TokenChunk) -> None:
        self._chunks.append(chunk)
        if chunk.finish_reason is not None:
            self.num_unfinished -= 1
        self._wake()

    def fail(self, error: CachelaneError) -> None:
        """Chunks that came before are still given out."""
        if not self.is_over:
            self._error = error
            self._wake()

    async def next(self) -> TokenChunk | None:
        while not self._chunks:
            if self._error is not None:
                raise _again(self._error)
            if not self.num_unfinished:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._chunks.popleft()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Streams:
    """All running requests. After `end` none can be started."""

    def __init__(self) -> None:
        self._key_to_stream: dict[str, Stream] = {}
        self._id_to_stream: dict[str, Stream] = {}
        self._keys = itertools.count()
        self._ended: ExecutorError | None = None

    @property
    def is_ended(self) -> bool:
        return self._ended is not None

    @property
    def death(self) -> ExecutorDead | None:
        """Why the executor died, if it did."""
        return self._ended if isinstance(self._ended, ExecutorDead) else None

    async def run(
        self,
        request: GenerateRequest,
        start: Callable[[GenerateRequest], None],
        withdraw: Callable[[str], None],
    ) -> AsyncIterator[TokenChunk]:
        """Chunks of a request. `start` gets it under its key, `withdraw` the key if unfinished.

        Raises InvalidRequest for an id that is running, and what `end` and `abort` say.
        """
        stream = self._open(request)
        try:
            start(msgspec.structs.replace(request, request_id=stream.key))
            while (chunk := await stream.next()) is not None:
                yield chunk
        finally:
            self._close(stream)
            if stream.num_unfinished:
                withdraw(stream.key)

    def push(self, key: str, chunk: TokenChunk) -> None:
        """A chunk for one stream, by its key; no effect if it is gone."""
        stream = self._key_to_stream.get(key)
        if stream is not None:
            stream.push(chunk)

    def fail(self, key: str, error: CachelaneError) -> None:
        """Ends one stream by its key; no effect if it is gone."""
        stream = self._key_to_stream.get(key)
        if stream is not None:
            stream.fail(error)

    def deliver(self, outputs: Iterable[Output]) -> None:
        """Outputs of requests that are gone are dropped."""
        for output in outputs:
            stream = self._key_to_stream.get(output.request_id)
            if stream is not None:
                stream.push(_chunk_of(output))

    def abort(self, request_id: str) -> None:
        stream = self._id_to_stream.get(request_id)
        if stream is not None:
            stream.fail(RequestAborted(f"request {request_id!r} was aborted"))

    def end(self, error: ExecutorError) -> None:
        """Every later request fails; `fail_all` tells those that wait. The first error stays."""
        if self._ended is None:
            self._ended = error

    def fail_all(self) -> None:
        assert self._ended is not None
        for stream in self._key_to_stream.values():
            stream.fail(self._ended)

    def _open(self, request: GenerateRequest) -> Stream:
        if self._ended is not None:
            raise _again(self._ended)
        if request.request_id in self._id_to_stream:
            raise InvalidRequest("request_id", f"{request.request_id!r} is already running")
        stream = Stream(request, str(next(self._keys)))
        self._id_to_stream[request.request_id] = self._key_to_stream[stream.key] = stream
        return stream

    def _close(self, stream: Stream) -> None:
        del self._key_to_stream[stream.key]
        del self._id_to_stream[stream.request.request_id]


def _again(error: CachelaneError) -> CachelaneError:
    """A fresh exception for each who waits: a shared one would collect all their tracebacks."""
    return copy.copy(error)


def _chunk_of(output: Output) -> TokenChunk:
    sample = output.sample
    logprobs: tuple[TokenLogprob, ...] = ()
    if sample is not None and sample.logprobs is not None:
        logprobs = (TokenLogprob(sample.logprobs.chosen, sample.logprobs.top),)
    return TokenChunk(
        token_ids=() if sample is None else (sample.token_id,),
        index=output.index,
        logprobs=logprobs,
        finish_reason=output.finish_reason,
        stop_token_id=output.stop_token_id,
        cached_tokens=output.cached_tokens,
        queue_ms=None if output.queue_s is None else output.queue_s * 1000,
    )
