"""The engine: requests in, one token per sequence and step out.

Owns the life of a request: its sequences, when they end, what is reported. One thread at a time
may call it, except `load`. Knows no text, no asyncio, no transport.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Protocol

import msgspec

from controllers.events import Load
from serve_app.engine.cache_manager import CacheManager
from serve_app.engine.event_buffer import EventBuffer
from serve_app.engine.request import Request
from serve_app.engine.sampler import Sampled
from serve_app.engine.scheduler import Scheduled, Scheduler
from serve_app.engine.sequence import Sequence
from serve_app.engine.stats import IterationStats


class Runner(Protocol):
    """Computes a step: KV of all its tokens, and in order a token for each part with logits."""

    def run(self, step: Seq[Scheduled]) -> list[Sampled]: ...


class Output(msgspec.Struct, frozen=True):
    """What a step did to one sequence. `sample` None: it ended by a token that is not given out."""

    request_id: str
    index: int
    sample: Sampled | None
    finish_reason: str | None
    stop_token_id: int | None
    cached_tokens: int | None  # in the request's first output and each sequence's last
    queue_s: float | None  # in the request's first output


class Engine:
    """`eos_ids` end every sequence that does not ignore them. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        *,
        manager: CacheManager,
        scheduler: Scheduler,
        runner: Runner,
        events: EventBuffer,
        max_seq_len: int,
        eos_ids: Seq[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_hit_tokens = 0
        self.num_prompt_tokens = 0
        self._manager = manager
        self._scheduler = scheduler
        self._runner = runner
        self._events = events
        self._max_seq_len = max_seq_len
        self._eos_ids = frozenset(eos_ids)
        self._clock = clock
        self._stats = IterationStats()
        self._step_started_at = 0.0
        self._request_id_to_live: dict[str, list[Sequence]] = {}

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work()

    @property
    def num_preemptions(self) -> int:
        """How often a sequence gave its blocks back for an older one."""
        return self._scheduler.num_preemptions

    def add_request(self, request: Request) -> None:
        """The first sequence computes the prompt; the others follow and share its blocks."""
        leader = self._new_sequence(request, index=0)
        leader.num_uncached_estimate -= self._manager.num_cached_tokens(leader)
        self._request_id_to_live[request.request_id] = [leader]
        self._scheduler.add(leader)

    def abort(self, request_id: str) -> None:
        """Ends all sequences of a request and frees their blocks. Unknown ids: no effect."""
        for seq in self._request_id_to_live.pop(request_id, []):
            self._scheduler.finish(seq, self._clock())
        self._events.flush()

    def step(self) -> list[Output]:
        step = self.schedule()
        samples = self._runner.run(step) if step else []
        return self.postprocess(step, samples)

    def schedule(self) -> list[Scheduled]:
        """Decides the next step. Between this and `postprocess` nothing may be added or aborted."""
        self._step_started_at = now = self._clock()
        step = self._scheduler.schedule(now)
        for seq, _, _ in step:
            if seq.queue_s is None:
                self._on_first_scheduled(seq, now)
        return step

    def postprocess(self, step: Seq[Scheduled], samples: Seq[Sampled]) -> list[Output]:
        """Takes the step's tokens in; ends sequences."""
        now = self._clock()
        outputs: list[Output] = []
        chosen = iter(samples)
        num_decodes = num_new_tokens = 0
        for seq, num_tokens, has_logits in step:
            if seq.is_decoding:
                num_decodes += 1
            else:
                num_new_tokens += num_tokens
            self._on_computed(seq, num_tokens)
            if has_logits:
                outputs.append(self._advance(seq, next(chosen), now))
        if step:
            ms = (now - self._step_started_at) * 1000
            active_blocks = self._manager.used_blocks["gpu"]
            self._stats.record(num_new_tokens, num_decodes, active_blocks, ms)
        self._events.flush()
        return outputs

    def load(self) -> Load:
        """Figures of now, from any thread. Sequences count: a request with n = 3 counts thrice."""
        waiting, running = list(self._scheduler.waiting), list(self._scheduler.running)
        prefill = [seq for seq in running if not seq.num_generated]
        queued = sum(max(0, seq.num_uncomputed) for seq in prefill)
        total = self._manager.num_blocks
        return Load(
            num_active=len(running),
            num_queued=len(waiting),
            queued_prefill_tokens=queued + sum(seq.num_uncached_estimate for seq in waiting),
            decode_tokens=sum(len(seq.tokens) for seq in running if seq.num_generated),
            used_blocks=_clamped(self._manager.used_blocks, total),
            total_blocks=dict(total),
            cached_blocks=_clamped(self._manager.cached_blocks, total),
            hit_tokens=self.num_hit_tokens,
            prompt_tokens=self.num_prompt_tokens,
            iterations=self._stats.take(),
        )

    def _new_sequence(self, request: Request, index: int) -> Sequence:
        seq = Sequence(request, self._manager.block_size, index, self._clock())
        eos_ids = frozenset[int]() if request.sampling.ignore_eos else self._eos_ids
        seq.stop_ids = eos_ids.union(request.sampling.stop_token_ids)
        return seq

    def _on_first_scheduled(self, seq: Sequence, now: float) -> None:
        seq.queue_s = now - seq.arrived_at
        if seq.prompt_cached_tokens is None:
            seq.prompt_cached_tokens = seq.num_cached
            self.num_hit_tokens += seq.num_cached
            self.num_prompt_tokens += seq.num_prompt_tokens

    def _on_computed(self, seq: Sequence, num_tokens: int) -> None:
        is_prompt = seq.num_computed < seq.num_prompt_tokens
        seq.num_computed += num_tokens
        if is_prompt:
            num_prompt_computed = min(seq.num_computed, seq.num_prompt_tokens)
            self._manager.store_full(seq, num_prompt_computed)

    def _advance(self, seq: Sequence, sample: Sampled, now: float) -> Output:
        """One more token, or the end."""
        is_first = seq.index == 0 and seq.num_generated == seq.request.num_resumed
        finish_reason = self._finish_reason(seq, sample.token_id)
        is_stop = finish_reason == "stop"
        if not is_stop:
            seq.tokens.append(sample.token_id)
        if is_first:
            self._start_siblings(seq)
        if finish_reason is not None:
            self._finish(seq, now)
        return Output(
            request_id=seq.request.request_id,
            index=seq.index,
            sample=None if is_stop else sample,
            finish_reason=finish_reason,
            stop_token_id=sample.token_id if is_stop else None,
            cached_tokens=seq.prompt_cached_tokens if is_first or finish_reason else None,
            queue_s=seq.queue_s if is_first else None,
        )

    def _finish_reason(self, seq: Sequence, token_id: int) -> str | None:
        sampling = seq.request.sampling
        if token_id in seq.stop_ids and seq.num_generated >= sampling.min_tokens:
            return "stop"
        is_last = seq.num_generated + 1 >= sampling.max_tokens
        return "length" if is_last or len(seq.tokens) + 1 >= self._max_seq_len else None

    def _start_siblings(self, leader: Sequence) -> None:
        if leader.request.sampling.n == 1:
            return
        siblings = [
            self._new_sequence(leader.request, index)
            for index in range(1, leader.request.sampling.n)
        ]
        for seq in siblings:
            seq.prompt_cached_tokens = leader.prompt_cached_tokens
            seq.num_uncached_estimate = 1
        self._request_id_to_live[leader.request.request_id].extend(siblings)
        self._scheduler.add_first(siblings)

    def _finish(self, seq: Sequence, now: float) -> None:
        self._scheduler.finish(seq, now)
        live = self._request_id_to_live[seq.request.request_id]
        live.remove(seq)
        if not live:
            del self._request_id_to_live[seq.request.request_id]


def _clamped(blocks: dict[str, int], total: dict[str, int]) -> dict[str, int]:
    return {medium: min(max(0, num), total[medium]) for medium, num in blocks.items()}
