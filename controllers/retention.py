"""Request type, spans and tenant in; Retention (what the engine should keep, how long) out.

Does not know engines, HTTP or time. Explicit ranges of a request are read by `retention_ranges`.

1. Promises never rise along a prefix (see `retention_policy`), whatever a request asks for.
2. A use of a block sets its priority anew, so blocks of a system prompt that others may share are
   never lowered: explicit lower values are refused.
3. A block belongs to the range that covers its first token; planned ranges end at block boundaries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from controllers.errors import InvalidRequest
from controllers.promises import (
    DEFAULT_PROMISE,
    DEFAULT_RETENTION_PRIORITY,
    MAX_RETENTION_PRIORITY,
    Piece,
    Promise,
    duration_of,
    runs,
    say,
    settle,
)
from controllers.retention_policy import RetentionPolicy as RetentionPolicy
from controllers.retention_policy import SpanRule, TypeRule, promise_of


class Spans(msgspec.Struct, frozen=True):
    """Where a prompt's parts end, in tokens: 0 <= system_end <= history_end <= num_tokens.

    [0, system_end) is the system prompt (with tools), [system_end, history_end) the earlier turns,
    [history_end, num_tokens) the current turn.
    """

    system_end: int
    history_end: int
    num_tokens: int

    def __post_init__(self) -> None:
        if not 0 <= self.system_end <= self.history_end <= self.num_tokens:
            raise ValueError(f"spans are not in order: {self}")


class TokenRange(msgspec.Struct, frozen=True):
    """Prompt tokens [start, end) are kept with this retention priority (0-100, higher stays).

    `end` None: to the end of the prompt; only the last range may be open. A block takes the range
    that covers its first token. `duration_s` None: never expires; otherwise the time after the
    block's release when its priority falls back to the engine's default.
    """

    start: int
    end: int | None
    retention_priority: int
    duration_s: float | None = None


class Retention(msgspec.Struct, frozen=True):
    """What one request asks its engine to keep. No ranges: the engine's defaults."""

    ranges: tuple[TokenRange, ...] = ()
    decode_retention_priority: int = DEFAULT_RETENTION_PRIORITY
    decode_duration_s: float | None = None


def plan(
    policy: RetentionPolicy,
    request_type: str,
    spans: Spans,
    block_size: int,
    explicit: Sequence[TokenRange] = (),
    ceiling: int = MAX_RETENTION_PRIORITY,
    is_shared: bool = True,
) -> Retention:
    """Retention of one request. Raises InvalidRequest.

    `explicit` (from `parse_ranges`) wins over the request type where it covers blocks; what lies
    before it is kept at least as long, what lies behind it at most. `ceiling`: the tenant's highest
    retention priority; higher values are lowered to it. `is_shared`: the tenant shares blocks with
    others (it has no salt), so blocks of the system prompt are never lowered: a ceiling below what
    the policy gives them leaves them as they are, and a lower explicit value is an error.
    """
    rule = rule_of(policy, request_type)
    shared = promise_of(policy.shared, MAX_RETENTION_PRIORITY) if is_shared else None
    system_end = math.ceil(spans.system_end / block_size)
    asked = _explicit_pieces(explicit, spans.num_tokens, block_size, ceiling)
    if shared is not None:
        _refuse_lowering(asked, system_end, shared)
    history_end = math.ceil(spans.history_end / block_size)
    num_blocks = math.ceil(spans.num_tokens / block_size)
    pieces = settle(
        [
            *_fill(0, system_end, _system_piece(rule.system, ceiling, shared), asked),
            *_fill(system_end, history_end, _piece(rule.history, ceiling), asked),
            *_fill(history_end, num_blocks, _piece(rule.current, ceiling), asked),
        ]
    )
    last = pieces[-1].promise if pieces else DEFAULT_PROMISE
    decode = (promise_of(rule.decode, ceiling) or DEFAULT_PROMISE).meet(last)
    ranges = tuple(_range(run, num_blocks, block_size) for run in runs(pieces))
    return Retention(ranges, decode.retention_priority, duration_of(decode))


def rule_of(policy: RetentionPolicy, request_type: str) -> TypeRule:
    """Raises InvalidRequest that lists the valid types."""
    rule = policy.request_types.get(request_type)
    if rule is None:
        valid = ", ".join(sorted(policy.request_types))
        raise InvalidRequest("request_type", f"{request_type!r} is none of: {valid}")
    return rule


def ranges_of_blocks(
    retention: Retention, num_tokens: int, block_size: int
) -> list[TokenRange | None]:
    """By block of the prompt (the last may be partial), the range that covers its first token.

    The ranges may be in any order but do not overlap. None: no range, that is the engine's default
    for a new block and no change of a cached one.
    """
    num_blocks = math.ceil(num_tokens / block_size)
    found: list[TokenRange | None] = [None] * num_blocks
    for given in retention.ranges:
        start = math.ceil(given.start / block_size)
        end = num_blocks if given.end is None else math.ceil(given.end / block_size)
        covered = range(start, min(end, num_blocks))
        found[start : start + len(covered)] = [given] * len(covered)
    return found


def _explicit_pieces(
    ranges: Sequence[TokenRange], num_tokens: int, block_size: int, ceiling: int
) -> list[Piece]:
    """In the order of `ranges`; a piece may be empty (the range covers no block's first token)."""
    pieces = []
    for given in ranges:
        end = num_tokens if given.end is None else given.end
        promise = Promise.of(min(given.retention_priority, ceiling), given.duration_s)
        start, stop = math.ceil(given.start / block_size), math.ceil(end / block_size)
        pieces.append(Piece(start, stop, promise, is_explicit=True))
    return pieces


def _refuse_lowering(asked: Sequence[Piece], system_end: int, shared: Promise) -> None:
    for i, piece in enumerate(asked):
        if piece.start < min(system_end, piece.end) and not piece.promise.covers(shared):
            raise InvalidRequest(
                f"retention[{i}].retention_priority",
                f"{say(piece.promise)} is less than {say(shared)}, which the system prompt is "
                "kept at for all who share it; start the range behind it or leave it out",
            )


def _piece(rule: SpanRule, ceiling: int) -> Piece:
    """A pattern for `_fill`."""
    promise = promise_of(rule, ceiling)
    return Piece(0, 0, promise or DEFAULT_PROMISE, is_left=promise is None)


def _system_piece(rule: SpanRule, ceiling: int, shared: Promise | None) -> Piece:
    if shared is None:
        return _piece(rule, ceiling)
    is_left = rule.retention_priority is None or ceiling < shared.retention_priority
    return Piece(0, 0, shared, is_left=is_left)


def _fill(start: int, end: int, pattern: Piece, asked: Sequence[Piece]) -> Iterator[Piece]:
    """Blocks [start, end) as `pattern`, except where an explicit piece covers them."""
    for piece in asked:
        first, stop = max(piece.start, start), min(piece.end, end)
        if first >= stop:
            continue
        if start < first:
            yield pattern._replace(start=start, end=first)
        yield piece._replace(start=first, end=stop)
        start = stop
    if start < end:
        yield pattern._replace(start=start, end=end)


def _range(run: Piece, num_blocks: int, block_size: int) -> TokenRange:
    end = None if run.end == num_blocks else run.end * block_size
    priority = run.promise.retention_priority
    return TokenRange(run.start * block_size, end, priority, duration_of(run.promise))
