"""The seam between a replica and what runs the model.

An executor owns one model and one KV cache per data-parallel rank. It knows nothing of Ray, Kafka,
HTTP, text or tenants' names: token ids in, token ids out. One contract suite runs on every
implementation (`tests/contract/test_executors.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from controllers.events import Event, Load
from controllers.retention import Retention


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to choose tokens. Checked at the edge; an executor may trust the ranges.

    `logprobs` None: none; k: the chosen token's and the k most likely ones' natural-log
    probabilities of the raw distribution. `n` sequences share the prompt; sequence i uses seed + i.
    Stop strings are the edge's business (it aborts); stop token ids end a sequence here and are
    not yielded.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()  # beside the model's own end tokens
    ignore_eos: bool = False
    logprobs: int | None = None
    n: int = 1
    logit_bias: dict[int, float] = {}
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt. `token_ids` are little-endian uint32, 4 bytes a token (cheap to send on)."""

    request_id: str
    token_ids: bytes
    sampling: SamplingParams
    retention: Retention = Retention()
    salt: int = 0  # keeps tenants' blocks apart; part of every block hash
    tier: str = "default"  # label for events
    tenant: str = "default"  # label for events
    dp_rank: int = 0
    adapter: str | None = None  # name of a LoRA adapter; its blocks are apart by `salt` already
    # So many of the last token ids were generated before, by an executor that failed: they count
    # for max_tokens, min_tokens, penalties and the seed as if this one had made them. Only with
    # n = 1.
    num_resumed: int = 0
    service_rank: int = 0  # which waits first, where the executor itself orders what waits; 0 first


class TokenLogprob(msgspec.Struct, frozen=True):
    """`top`: (token id, logprob), most likely first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class TokenChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """New tokens of sequence `index`. The last chunk of a sequence has a finish_reason.

    `cached_tokens`: prompt tokens that were reused; in the first chunk of the request and in each
    last one. `queue_ms`: from submission to the first scheduling, in the first chunk.
    """

    token_ids: tuple[int, ...] = ()
    index: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None  # stop, length, abort
    stop_token_id: int | None = None  # which token ended it, with finish_reason stop
    cached_tokens: int | None = None
    queue_ms: float | None = None


class ExecutorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change while the executor lives."""

    name: str  # scripted, local, trtllm
    version: str
    model: str
    block_size: int  # tokens
    num_blocks: dict[str, int]  # medium -> blocks
    max_seq_len: int  # prompt + generated tokens of one sequence
    max_batch_size: int  # sequences that run together
    max_batched_tokens: int  # tokens of one iteration
    num_dp_ranks: int = 1
    features: dict[str, bool] = {}  # what was found to work, where that depends on the engine


class Executor(Protocol):
    """Created with its own settings; ready for requests when the constructor returns."""

    @property
    def info(self) -> ExecutorInfo: ...

    def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        """Run one request; chunks come as tokens are made.

        Call on the event loop. Closing or cancelling the iterator aborts the request. Raises
        InvalidRequest before the first chunk for a prompt that cannot run (empty, a token id beyond
        the vocabulary, longer than max_seq_len - 1), RequestAborted after abort() or close(),
        ExecutorDead if the executor died.
        """
        ...

    def abort(self, request_id: str) -> None:
        """End a request, free its slot and blocks by the next iteration. Unknown id: no effect."""
        ...

    def drain_events(self, timeout_s: float, dp_rank: int = 0) -> list[Event]:
        """A rank's cache events since the last call, in order; waits up to timeout_s for one.

        One thread for each rank. Destroys what it returns. Never returns worker_up, load or
        snapshot: those are the replica's. An overflow of the executor's buffer is a `Lost` event
        in its place.
        """
        ...

    def load(self, dp_rank: int = 0) -> Load:
        """A rank's figures of now, clamped to what is possible.

        `iterations` are destroyed by reading.
        """
        ...

    def check_health(self) -> None:
        """Return if a request could run; else raise ExecutorDead. Bounded: at most a second."""
        ...

    def close(self) -> None:
        """Abort everything, free the model. Idempotent; generate() raises RequestAborted after."""
        ...
