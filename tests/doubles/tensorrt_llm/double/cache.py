"""Our block manager with TensorRT-LLM's habits: when blocks are stored and what is told of it."""

from __future__ import annotations

from typing import Any

from serve_app.engine.block import Block
from serve_app.engine.block_manager import BlockManager
from serve_app.engine.reuse_tree import Match
from serve_app.engine.sequence import Sequence
from tensorrt_llm.double.tap import Tap


class Cache(BlockManager):
    """One attention window of one rank.

    `stores_early`: full blocks become reusable after every chunk of a prompt; otherwise after the
    whole prompt. Either way the prompt's last token is left out, so that a prompt that ends with a
    full block does not store that block until the request ends.
    """

    def __init__(
        self,
        *,
        tap: Tap,
        stores_early: bool,
        stores_context: bool = True,
        has_partial_reuse: bool = True,
        copies_on_partial_reuse: bool = True,
        **sizes: Any,
    ) -> None:
        super().__init__(events=tap, **sizes)
        self._tap = tap
        self._stores_early = stores_early
        self._stores_context = stores_context
        self._has_partial_reuse = has_partial_reuse
        self._copies_on_partial_reuse = copies_on_partial_reuse

    def allocate(self, seq: Sequence, now: float, num_spare: int = 0) -> bool:
        num_changes = self._tap.num_changes
        is_done = super().allocate(seq, now, num_spare)
        if is_done:
            self._tap.forget_private_leaf(seq, num_changes)
        return is_done

    def store_full(self, seq: Sequence, num_tokens: int) -> None:
        is_whole = num_tokens >= seq.num_prompt_tokens
        if not self._stores_context or not (is_whole or self._stores_early):
            return
        self._tap.storing = seq
        super().store_full(seq, min(num_tokens, seq.num_prompt_tokens - 1))
        self._tap.storing = None

    def free(self, seq: Sequence, now: float, num_tokens: int | None = None) -> None:
        self._tap.storing = seq
        super().free(seq, now, num_tokens)
        self._tap.storing = None

    def expire(self, now: float) -> None:
        self._tap.is_muted = True
        super().expire(now)
        self._tap.is_muted = False

    def _match(self, seq: Sequence) -> Match:
        match = super()._match(seq)
        source = match.partial
        if source is None or self._may_take(source):
            return match
        return Match(match.full, None, 0)

    def _may_take(self, source: Block) -> bool:
        is_shared = source.ref_count > 0 or bool(source.children)
        return self._has_partial_reuse and (self._copies_on_partial_reuse or not is_shared)
