"""What this side knows of the requests in a TensorRT-LLM engine, where the engine says nothing.

An idle engine sends no statistics, and one that works sends them late. Requests, tokens and reuse
are counted here; the engine's own figures complete them. Written to by the event loop, read by any
thread.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from controllers.blocks import num_common_blocks
from serve_app.executors.base import GenerateRequest


@dataclass(slots=True, eq=False)
class EngineSequence:
    """One sequence in the engine. Times are of the books' clock; None: not yet."""

    request: GenerateRequest
    index: int
    num_prompt_tokens: int
    num_uncached: int  # prompt tokens that must be computed, as far as is known
    hashes: Sequence[int]  # ours, of the prompt's full blocks
    submitted_at: float
    admitted_at: float | None = None  # when the engine had a free place for it
    first_at: float | None = None
    num_generated: int = 0
    num_cached: int = 0  # prompt tokens that its request's first sequence found in the cache

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_generated


class Figures(NamedTuple):
    """Of one rank. `used_blocks`: at least so many, without what sequences share."""

    num_active: int
    num_queued: int
    queued_prefill_tokens: int
    decode_tokens: int
    used_blocks: int


class Books:
    """`max_running` sequences have a place at a time; the first come have it first."""

    def __init__(
        self,
        max_running: int,
        block_size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.last_sign_at = clock()  # of life, by the engine
        self._max_running = max_running
        self._block_size = block_size
        self._live: dict[int, EngineSequence] = {}
        self._hits: dict[int, int] = {}
        self._prompts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._live)

    def sign_of_life(self) -> None:
        self.last_sign_at = self.clock()

    def silence_s(self) -> float:
        """How long the engine has said nothing although it has work; 0 without work."""
        live = list(self._live.values())
        if not live:
            return 0.0
        waiting_since = max(self.last_sign_at, min(seq.submitted_at for seq in live))
        return max(0.0, self.clock() - waiting_since)

    def add(self, seq: EngineSequence) -> None:
        self._live[id(seq)] = seq
        self._admit()

    def first_response(self, seq: EngineSequence, num_cached_tokens: int) -> float:
        """Notes what was reused; ms that the sequence waited for a place."""
        now = self.clock()
        seq.first_at = now
        seq.admitted_at = now if seq.admitted_at is None else seq.admitted_at
        rank = seq.request.dp_rank
        if seq.index == 0:
            self._hits[rank] = self._hits.get(rank, 0) + num_cached_tokens
            self._prompts[rank] = self._prompts.get(rank, 0) + seq.num_prompt_tokens
        return max(0.0, seq.admitted_at - seq.submitted_at) * 1000

    def remove(self, seq: EngineSequence) -> None:
        self._live.pop(id(seq), None)
        self._admit()

    def num_shared(self, hashes: Sequence[int], dp_rank: int) -> int:
        """Blocks at the start of a prompt that a live sequence has as well, and may have stored
        before its events are read."""
        live = [seq for seq in self._live.values() if seq.request.dp_rank == dp_rank]
        return max((num_common_blocks(seq.hashes, hashes) for seq in live), default=0)

    def hit_tokens(self, dp_rank: int) -> int:
        return self._hits.get(dp_rank, 0)

    def prompt_tokens(self, dp_rank: int) -> int:
        return self._prompts.get(dp_rank, 0)

    def figures(self, dp_rank: int) -> Figures:
        live = [seq for seq in list(self._live.values()) if seq.request.dp_rank == dp_rank]
        admitted = [seq for seq in live if seq.admitted_at is not None]
        decoding = [seq for seq in admitted if seq.first_at is not None]
        return Figures(
            num_active=len(admitted),
            num_queued=len(live) - len(admitted),
            queued_prefill_tokens=sum(seq.num_uncached for seq in live if seq.first_at is None),
            decode_tokens=sum(seq.num_tokens for seq in decoding),
            used_blocks=sum(math.ceil(seq.num_tokens / self._block_size) for seq in admitted),
        )

    def _admit(self) -> None:
        """The engine's own places are per rank; so are these."""
        num_running: dict[int, int] = {}
        for seq in self._live.values():
            rank = seq.request.dp_rank
            if num_running.get(rank, 0) < self._max_running and seq.admitted_at is None:
                seq.admitted_at = self.clock()
            num_running[rank] = num_running.get(rank, 0) + (seq.admitted_at is not None)
