"""Which sequences compute which tokens in the next step.

Owns the waiting and running lists. Knows neither the model nor how tokens are chosen.

1. A step first gives every decoding sequence one token, then prompts in order of admission as many
   as are left of `max_batched_tokens`. Since that exceeds `max_batch_size`, a prompt always
   advances: long prompts cannot stop decoding, nor decoding stop prompts.
2. Waiting sequences are admitted in their order, when their present tokens fit and one free block
   stays for each running sequence (none when nothing runs, so the first in line always fits).
3. A decoding sequence that finds no free block preempts the one admitted last, which keeps its
   tokens and goes to the head of the waiting line. Its computed blocks stay reusable as long as
   nobody needs them. The oldest sequence always advances and a sequence alone always fits, so
   nothing can deadlock.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from controllers.errors import SettingsError
from serve_app.engine.cache_manager import CacheManager
from serve_app.engine.sequence import Sequence


class Scheduled(NamedTuple):
    """The next `num_tokens` tokens of a sequence. `has_logits`: they are its last ones."""

    seq: Sequence
    num_tokens: int
    has_logits: bool


class Scheduler:
    """Every sequence that is not finished is either waiting or running."""

    def __init__(
        self, manager: CacheManager, *, max_batch_size: int, max_batched_tokens: int
    ) -> None:
        if max_batched_tokens <= max_batch_size:
            raise SettingsError(
                f"executor.max_batched_tokens is {max_batched_tokens}, must exceed "
                f"max_batch_size {max_batch_size}, or prompts could starve"
            )
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self._manager = manager
        self._max_batch_size = max_batch_size
        self._max_batched_tokens = max_batched_tokens

    def add(self, seq: Sequence) -> None:
        self.waiting.append(seq)

    def add_first(self, seqs: list[Sequence]) -> None:
        """To the head of the line, in their order."""
        self.waiting.extendleft(reversed(seqs))

    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def schedule(self, now: float) -> list[Scheduled]:
        """Empty only when nothing waits or runs."""
        self._manager.expire(now)
        step = self._schedule_decodes(now)
        budget = self._max_batched_tokens - len(step)
        budget = self._schedule_prompts(step, budget)
        self._admit(step, budget, now)
        return step

    def finish(self, seq: Sequence, now: float) -> None:
        """Takes a sequence out; its computed blocks stay reusable."""
        if seq in self.running:
            self.running.remove(seq)
        else:
            self.waiting.remove(seq)
        self._manager.free(seq, now)

    def _schedule_decodes(self, now: float) -> list[Scheduled]:
        step = []
        for seq in list(self.running):
            if not seq.is_decoding or not seq.blocks:  # without blocks: preempted just now
                continue
            if self._grow(seq, now):
                step.append(Scheduled(seq, 1, True))
        return step

    def _grow(self, seq: Sequence, now: float) -> bool:
        """Room for the sequence's tokens; False when it had to give way itself."""
        self._manager.slide(seq, now)
        while not self._manager.grow(seq, len(seq.tokens)):
            youngest = self.running.pop()
            self._manager.free(youngest, now)
            self.waiting.appendleft(youngest)
            self.num_preemptions += 1
            if youngest is seq:
                return False
        return True

    def _schedule_prompts(self, step: list[Scheduled], budget: int) -> int:
        for seq in self.running:
            if seq.is_decoding or not budget:
                continue
            step.append(_chunk(seq, budget))
            budget -= step[-1].num_tokens
        return budget

    def _admit(self, step: list[Scheduled], budget: int, now: float) -> None:
        while self.waiting and budget and len(self.running) < self._max_batch_size:
            seq = self.waiting[0]
            if not self._manager.allocate(seq, now, num_spare=len(self.running)):
                return
            self.running.append(self.waiting.popleft())
            step.append(_chunk(seq, budget))
            budget -= step[-1].num_tokens


def _chunk(seq: Sequence, budget: int) -> Scheduled:
    num_tokens = min(budget, seq.num_uncomputed)
    return Scheduled(seq, num_tokens, num_tokens == seq.num_uncomputed)
