"""One request as learned retention sees it, and promises by block as ranges of its tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from controllers.promises import (
    DEFAULT_PROMISE,
    DEFAULT_RETENTION_PRIORITY,
    MAX_RETENTION_PRIORITY,
    Promise,
)
from controllers.retention import Retention, TokenRange


class PromptUse(NamedTuple):
    """`hashes`: of the prompt's full blocks. `ceiling`: the tenant's highest retention priority.

    `is_kept` False: nothing of it will be asked for again. `keeps_reply`: its next turn contains
    the reply, which begins in the prompt's last block if that is partial.
    """

    hashes: Sequence[int]
    num_tokens: int
    block_size: int
    request_type: str
    tenant: str = "default"
    ceiling: int = MAX_RETENTION_PRIORITY
    is_kept: bool = True
    keeps_reply: bool = True

    @property
    def group(self) -> tuple[str, str]:
        """Whose behaviour is learned together, and who has a floor."""
        return self.request_type, self.tenant


class Stretch(NamedTuple):
    """Consecutive full blocks of a prompt and their promise."""

    num_blocks: int
    promise: Promise


def retention_of(stretches: Sequence[Stretch], use: PromptUse) -> Retention:
    """Ranges of tokens; the last one is open."""
    last = stretches[-1].promise if stretches else DEFAULT_PROMISE
    reply = last if use.keeps_reply else last.meet(DEFAULT_PROMISE)
    if use.num_tokens > len(use.hashes) * use.block_size:
        stretches = [*stretches, Stretch(1, reply)]
    ranges: list[TokenRange] = []
    at = 0
    for num_blocks, promise in stretches:
        start, at = at, at + num_blocks * use.block_size
        priority, duration_s = promise.retention_priority, _duration(promise)
        if ranges and _is(ranges[-1], priority, duration_s):
            start = ranges.pop().start
        ranges.append(TokenRange(start, at, priority, duration_s))
    if ranges:
        ranges[-1] = msgspec.structs.replace(ranges[-1], end=None)
    return Retention(tuple(ranges), reply.retention_priority, _duration(reply))


def _duration(promise: Promise) -> float | None:
    """Whole milliseconds, as engines count."""
    if promise.retention_priority <= DEFAULT_RETENTION_PRIORITY or math.isinf(promise.duration_s):
        return None
    return max(1, int(promise.duration_s * 1e3)) / 1e3


def _is(given: TokenRange, retention_priority: int, duration_s: float | None) -> bool:
    return given.retention_priority == retention_priority and given.duration_s == duration_s
