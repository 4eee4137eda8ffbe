"""Whether a worker can start a request at once, and how much of it goes out in one piece."""

from __future__ import annotations

from typing import NamedTuple

from controllers.books import Books
from controllers.costs import Costs
from controllers.gate import SHARED_START_SHARE
from controllers.placement_types import PlacementSettings
from controllers.rank_book import Passed

# A first token that is late by what was predicted does not keep the next request waiting; so many
# that are late do, or a worker that hangs would be sent everything that waits.
MAX_LATE = 2
LONG_SHARE = 1.5  # a prefill is cut if it is longer than so many pieces


class Rules(NamedTuple):
    """`shared_start_tokens`: prompts start together while they have at most so many tokens to
    compute. `slice_tokens` of a piece; 0: prompts go out whole."""

    is_holding: bool
    shared_start_tokens: int
    slice_tokens: int


def rules_of(settings: PlacementSettings, max_batched_tokens: int, max_running: float) -> Rules:
    """A piece is whole iterations less room for those that decode, or each would end with one that
    is nearly empty."""
    decodes = min(max_running, max_batched_tokens // 2)
    return Rules(
        is_holding=settings.hold and settings.policy == "kv_aware",
        shared_start_tokens=int(SHARED_START_SHARE * max_batched_tokens),
        slice_tokens=int(settings.slice_iterations * (max_batched_tokens - decodes)),
    )


def may_start(
    row: int,
    costs: Costs,
    books: Books,
    passed: Passed,
    shared_start_tokens: int,
    now_ms: float,
) -> bool:
    """Whether this worker can start a request with such costs now: it has room, and none of ours
    should still wait there for a first token, or only short work. What others have sent the gate
    puts in order; what the request passes there (`passed`, as numbers) does not keep it
    waiting."""
    if costs.room_ms[row] > 0.0 and books.num_requests[row] > 0:
        return False
    num_ahead = float(books.num_unstarted[row] - passed.own_requests)
    if num_ahead <= 0 or (num_ahead <= MAX_LATE and books.own_prefill_end_ms[row] <= now_ms):
        return True
    tokens_ahead = float(books.prefill_tokens[row] - passed.own_tokens)
    return bool(tokens_ahead + costs.uncached_tokens[row] <= shared_start_tokens)


def piece_tokens(
    num_tokens: int, cached_tokens: int, block_size: int, slice_tokens: int
) -> int | None:
    """Leading tokens of a prompt to send now, in whole blocks; None: all of it."""
    if not slice_tokens or num_tokens - cached_tokens <= LONG_SHARE * slice_tokens:
        return None
    end = cached_tokens + slice_tokens
    return end - end % block_size
