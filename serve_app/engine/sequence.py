"""One sequence of a request: its tokens, its progress and the blocks it uses.

A record with conversions; scheduler, block manager and engine change it. Knows no rules of theirs.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Iterable
from copy import copy
from typing import NamedTuple

from controllers.errors import InvalidRequest
from controllers.retention import ranges_of_blocks
from serve_app.engine.block import Block
from serve_app.engine.request import Request
from serve_app.engine.token_keys import Namespace, key_with_extra_ids


class BlockRetention(NamedTuple):
    """`priority` None: a reused block keeps its own, a new one gets the default."""

    priority: int | None = None
    duration_s: float | None = None


class Sequence:
    """`index` says which of the request's sequences this is.

    `num_computed` tokens have their KV in `blocks`; `num_cached` of them were reused at the last
    admission. `prompt_cached_tokens` is what the request's first admission found. The first
    `num_detached` of `blocks` belong to others now: no later token attends to them.

    `extra_ids` say what each prompt token stands for beside its id (see `token_keys`); those that
    are not given are 0. Text has none at all. Raises InvalidRequest for more than there are tokens.
    """

    __slots__ = (
        "arrived_at",
        "block_table",
        "blocks",
        "extra_ids",
        "index",
        "namespace",
        "num_cached",
        "num_computed",
        "num_detached",
        "num_prompt_tokens",
        "num_stored_blocks",
        "num_uncached_estimate",
        "prompt_cached_tokens",
        "queue_s",
        "request",
        "retentions",
        "sampler_state",
        "stop_ids",
        "tokens",
    )

    def __init__(
        self,
        request: Request,
        block_size: int,
        index: int = 0,
        now: float = 0.0,
        extra_ids: Iterable[int] = (),
    ) -> None:
        self.request = request
        self.index = index
        self.arrived_at = now
        self.queue_s: float | None = None
        self.tokens = tokens_of(request.token_ids)
        self.extra_ids = array.array("Q", extra_ids)
        if len(self.extra_ids) > len(self.tokens):
            raise InvalidRequest(
                "extra_ids", f"{len(self.extra_ids)} for {len(self.tokens)} prompt tokens"
            )
        self.namespace = Namespace(request.salt, bool(self.extra_ids))
        self.num_prompt_tokens = len(self.tokens) - request.num_resumed
        self.num_computed = 0
        self.num_cached = 0
        self.num_uncached_estimate = len(self.tokens)
        self.prompt_cached_tokens: int | None = None
        self.blocks: list[Block] = []
        self.block_table: list[int] = []
        self.num_detached = 0
        self.num_stored_blocks = 0
        self.retentions = [
            BlockRetention() if r is None else BlockRetention(r.retention_priority, r.duration_s)
            for r in ranges_of_blocks(request.retention, self.num_prompt_tokens, block_size)
        ]
        self.stop_ids: frozenset[int] = frozenset()
        self.sampler_state: object = None

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Only the token generated last is not computed yet."""
        return self.num_uncomputed == 1 and self.num_generated > 0

    def token_bytes(self, start: int, end: int) -> bytes:
        return self.tokens[start:end].tobytes()

    def key(self, start: int, end: int) -> bytes:
        """Tokens [start, end) as the reuse tree knows them."""
        tokens = self.tokens[start:end]
        if not self.namespace.has_extra_ids:
            return tokens.tobytes()
        return key_with_extra_ids(tokens, self.extra_ids[start:end])

    def view(self) -> Sequence:
        """The same tokens for another cache: blocks and progress of its own."""
        other = copy(self)
        other.set_blocks([])
        other.num_cached = other.num_computed = other.num_stored_blocks = 0
        return other

    def retention_of(self, index: int) -> BlockRetention:
        """By the prompt's ranges; blocks after the prompt by what is said of generated tokens."""
        if index < len(self.retentions):
            return self.retentions[index]
        retention = self.request.retention
        return BlockRetention(retention.decode_retention_priority, retention.decode_duration_s)

    def set_blocks(self, blocks: list[Block]) -> None:
        self.blocks = blocks
        self.block_table = [block.slot for block in blocks]
        self.num_detached = 0

    def add_block(self, block: Block) -> None:
        self.blocks.append(block)
        self.block_table.append(block.slot)


def tokens_of(token_ids: bytes) -> array.array[int]:
    """Little-endian uint32 bytes as an array of the machine's own."""
    tokens = array.array("I")
    tokens.frombytes(token_ids)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens
