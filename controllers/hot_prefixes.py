"""Prefixes that many requests share, remembered with their tokens, to be computed on a new worker.

The log carries no token ids, so whoever routes requests keeps those of the hottest prefixes. Owns
which they are and how much memory they take. Does not know workers or how a warm-up is sent.

1. What two requests with the same first block have in common is a candidate; a prefix is shared
   once `min_uses` requests had it. One conversation's turns share a longer prefix each time, so its
   history is never one.
2. Tokens are kept for at most MAX_FIRSTS first blocks, MAX_RECENT requests each, MAX_BLOCKS blocks
   of a prompt, and MAX_CANDIDATES prefixes: with blocks of 32 tokens under 25 MB.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from controllers.blocks import num_common_blocks
from controllers.retention import Retention

MAX_FIRSTS = 32
MAX_RECENT = 4
MAX_BLOCKS = 512
MAX_CANDIDATES = 128
MIN_BLOCKS = 2
BYTES_PER_TOKEN = 4
HALF_LIFE_S = 600.0
_WARM_UP = "warm-"


def warm_up_id(name: str) -> str:
    """Request id of a warm-up; replicas leave it out of their latencies."""
    return _WARM_UP + name


def is_warm_up(request_id: str) -> bool:
    return request_id.startswith(_WARM_UP)


class Prefix(NamedTuple):
    """`hashes` of its blocks, `token_ids` as little-endian uint32."""

    hashes: tuple[int, ...]
    token_ids: bytes
    salt: int
    tenant: str
    adapter: str | None
    retention: Retention

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) // BYTES_PER_TOKEN


class _Candidate:
    def __init__(self, prefix: Prefix, now: float) -> None:
        self.prefix = prefix
        self.uses = 0.0
        self._at = now

    def use(self, now: float) -> None:
        self.uses = self.uses_at(now) + 1.0
        self._at = now

    def uses_at(self, now: float) -> float:
        return self.uses * math.pow(2.0, (self._at - now) / HALF_LIFE_S)


class HotPrefixes:
    """`observe` every request, ask for the `hottest` when a worker is new."""

    def __init__(self, block_size: int) -> None:
        self._block_bytes = block_size * BYTES_PER_TOKEN
        self._recent: OrderedDict[int, deque[Prefix]] = OrderedDict()  # by first block
        self._candidates: OrderedDict[int, _Candidate] = OrderedDict()  # by last block

    def observe(
        self,
        hashes: Sequence[int],
        token_ids: bytes,
        *,
        salt: int,
        tenant: str,
        adapter: str | None,
        retention: Retention,
        now: float,
    ) -> None:
        """`hashes` of the prompt's full blocks. Cost: a comparison with at most four prompts, each
        by halving, and one copy of the prompt's tokens."""
        if len(hashes) < MIN_BLOCKS:
            return
        recent = self._recent.setdefault(hashes[0], deque(maxlen=MAX_RECENT))
        self._recent.move_to_end(hashes[0])
        if len(self._recent) > MAX_FIRSTS:
            self._recent.popitem(last=False)
        kept = tuple(hashes[:MAX_BLOCKS])
        kept_ids = token_ids[: len(kept) * self._block_bytes]
        prompt = Prefix(kept, kept_ids, salt, tenant, adapter, retention)
        num_common = max((num_common_blocks(kept, other.hashes) for other in recent), default=0)
        recent.append(prompt)
        if num_common >= MIN_BLOCKS:
            self._use(prompt, num_common, now)

    def hottest(
        self, min_uses: int, max_prefixes: int, max_tokens: int, now: float
    ) -> list[Prefix]:
        """The most used first, together within the bounds. A prefix of a chosen one is left out, as
        it is warmed with it. Uses fade with a half-life of ten minutes."""
        # An exact min_uses would miss a prefix whose last use is a second old.
        ranked = sorted(
            (c for c in self._candidates.values() if c.uses_at(now) > min_uses - 1),
            key=lambda c: c.uses_at(now) * c.prefix.num_tokens,
            reverse=True,
        )
        chosen: list[Prefix] = []
        left = max_tokens
        for candidate in ranked:
            prefix = candidate.prefix
            if len(chosen) == max_prefixes:
                break
            if prefix.num_tokens > left or any(_covers(other, prefix) for other in chosen):
                continue
            chosen.append(prefix)
            left -= prefix.num_tokens
        return chosen

    def _use(self, prompt: Prefix, num_blocks: int, now: float) -> None:
        key = prompt.hashes[num_blocks - 1]
        known = self._candidates.get(key)
        if known is None:
            known = self._candidates[key] = _Candidate(self._cut(prompt, num_blocks), now)
            known.use(now)  # of the request that it was found to be shared with
            if len(self._candidates) > MAX_CANDIDATES:
                self._candidates.popitem(last=False)
        self._candidates.move_to_end(key)
        known.use(now)

    def _cut(self, prompt: Prefix, num_blocks: int) -> Prefix:
        num_bytes = num_blocks * self._block_bytes
        return prompt._replace(
            hashes=prompt.hashes[:num_blocks],
            token_ids=prompt.token_ids[:num_bytes],
            retention=_cut_retention(prompt.retention, num_bytes // BYTES_PER_TOKEN),
        )


def _cut_retention(retention: Retention, num_tokens: int) -> Retention:
    """What the prompt asked for, of its beginning; the one token that is generated is not kept."""
    ranges = tuple(
        msgspec.structs.replace(part, end=num_tokens)
        if part.end is None or part.end > num_tokens
        else part
        for part in retention.ranges
        if part.start < num_tokens
    )
    return Retention(ranges=ranges, decode_retention_priority=0)


def _covers(one: Prefix, other: Prefix) -> bool:
    num = len(other.hashes)
    return len(one.hashes) >= num and one.hashes[num - 1] == other.hashes[-1]
