"""One request as learned retention sees it, and promises by block as ranges of its tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

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
    promises: list[Promise] = []
    ends: list[int | None] = []
    num_blocks = 0
    for stretch in stretches:
        num_blocks += stretch.num_blocks
        if promises and promises[-1] == stretch.promise:
            ends[-1] = num_blocks * use.block_size
        else:
            promises.append(stretch.promise)
            ends.append(num_blocks * use.block_size)
    starts = [0, *ends[:-1]]
    ends[-1:] = [None] if ends else []
    ranges = tuple(map(_range, starts, ends, promises))
    return Retention(ranges, reply.retention_priority, _duration(reply))


def _range(start: int | None, end: int | None, promise: Promise) -> TokenRange:
    return TokenRange(start or 0, end, promise.retention_priority, _duration(promise))


def _duration(promise: Promise) -> float | None:
    """Whole milliseconds, as engines count."""
    if promise.retention_priority <= DEFAULT_RETENTION_PRIORITY or math.isinf(promise.duration_s):
        return None
    return max(1, int(promise.duration_s * 1e3)) / 1e3
