"""Promises along a prompt: how long runs of blocks are kept, made lawful from root to leaf.

Knows nothing of policies, tenants or the wire.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

DEFAULT_RETENTION_PRIORITY = 35  # TensorRT-LLM's, for blocks that nobody says anything about
MAX_RETENTION_PRIORITY = 100


class Promise(NamedTuple):
    """Retention priority, and seconds after release until it falls to 35 (inf: never)."""

    retention_priority: int
    duration_s: float

    @classmethod
    def of(cls, retention_priority: int, duration_s: float | None) -> Promise:
        """At or below 35 there is nothing to fall to, so the duration is dropped."""
        if duration_s is None or retention_priority <= DEFAULT_RETENTION_PRIORITY:
            return cls(retention_priority, math.inf)
        return cls(retention_priority, duration_s)

    def covers(self, other: Promise) -> bool:
        """True if a block kept so outlives a block kept as `other`."""
        return self.retention_priority >= other.retention_priority and (
            other.retention_priority <= DEFAULT_RETENTION_PRIORITY
            or self.duration_s >= other.duration_s
        )

    def join(self, other: Promise) -> Promise:
        """The least promise that covers both."""
        above = [p.duration_s for p in (self, other) if p.retention_priority > 35]
        highest = max(self.retention_priority, other.retention_priority)
        return Promise.of(highest, max(above, default=math.inf))

    def meet(self, other: Promise) -> Promise:
        """The greatest promise that both cover."""
        lowest = min(self.retention_priority, other.retention_priority)
        return Promise.of(lowest, min(self.duration_s, other.duration_s))


DEFAULT_PROMISE = Promise(DEFAULT_RETENTION_PRIORITY, math.inf)


def duration_of(promise: Promise) -> float | None:
    return None if math.isinf(promise.duration_s) else promise.duration_s


def say(promise: Promise) -> str:
    duration = duration_of(promise)
    return f"{promise.retention_priority}" + (f" for {duration:g} s" if duration else "")


class Piece(NamedTuple):
    """Blocks [start, end) of a prompt.

    `is_explicit`: asked for by the request, never changed. `is_left`: nothing is written for these
    blocks; `promise` is then what they are assumed to have.
    """

    start: int
    end: int
    promise: Promise
    is_explicit: bool = False
    is_left: bool = False

    def with_promise(self, promise: Promise) -> Piece:
        return self if promise == self.promise else Piece(self.start, self.end, promise)


def settle(pieces: Iterable[Piece]) -> list[Piece]:
    """Make promises fall along the prompt: raise what lies before an explicit piece to it, lower
    what lies behind one. Explicit pieces themselves must already fall."""
    raised = list(_raise(reversed(list(pieces))))
    return list(_lower(reversed(raised)))


def _raise(from_leaf: Iterable[Piece]) -> Iterator[Piece]:
    behind: Promise | None = None
    for piece in from_leaf:
        if piece.is_explicit:
            behind = piece.promise
        elif behind is not None:
            piece = piece.with_promise(piece.promise.join(behind))
        yield piece


def _lower(from_root: Iterable[Piece]) -> Iterator[Piece]:
    before: Promise | None = None
    for piece in from_root:
        if piece.is_explicit:
            before = piece.promise
        elif before is not None:
            piece = piece.with_promise(piece.promise.meet(before))
        yield piece


def runs(pieces: Iterable[Piece]) -> list[Piece]:
    """What has to be written: no left pieces, neighbours of equal promise as one."""
    out: list[Piece] = []
    for piece in pieces:
        if piece.is_left:
            continue
        if out and out[-1].end == piece.start and out[-1].promise == piece.promise:
            piece = Piece(out.pop().start, piece.end, piece.promise)
        out.append(piece)
    return out
