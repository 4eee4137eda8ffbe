"""Which worker would answer each of several requests soonest. Chooses nothing: cost does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from controllers.blind import Rows
from controllers.costs import Costs
from controllers.numbers import Floats, largest

# A request that has less than this share of the usual work to do somewhere is tied to there.
TIED_SHARE = 0.9


class AtBest(NamedTuple):
    """Requests on the candidate that would answer each soonest; arrays have one value for each."""

    ttft_ms: Floats
    service_ms: Floats
    uncached_tokens: Floats  # the least that any candidate would compute
    # More of its prompt is cached on some workers than on others, or only one may take it.
    is_tied: npt.NDArray[np.bool_]
    has_room: bool  # every worker has blocks and a place for any of them


def at_best(costs: Costs, rows: Sequence[Rows]) -> AtBest:
    """`costs` of several requests, `rows` the candidates of each."""
    ttft_ms, uncached = costs.start_ms + costs.service_ms, costs.uncached_tokens
    usual = uncached.sum(axis=1) / uncached.shape[1]
    if any(len(own) < ttft_ms.shape[1] for own in rows):
        is_none = np.ones(ttft_ms.shape, np.bool_)
        for at, own in enumerate(rows):
            is_none[at, own] = False
        ttft_ms, uncached = (np.where(is_none, np.inf, v) for v in (ttft_ms, uncached))
    each, best = np.arange(len(rows)), ttft_ms.argmin(axis=1)
    least = uncached[each, uncached.argmin(axis=1)]
    return AtBest(
        ttft_ms=ttft_ms[each, best],
        service_ms=costs.service_ms[each, best],
        uncached_tokens=least,
        is_tied=(least < TIED_SHARE * usual) | [len(own) == 1 for own in rows],
        has_room=largest(costs.room_ms) <= 0.0,
    )


def together(parts: Sequence[AtBest], order: Sequence[int]) -> AtBest:
    """Of all requests; `order`: their indices, as they stand in `parts` one after the other."""
    back = np.argsort(order)
    columns = zip(*(part[:-1] for part in parts), strict=True)
    of_all = [np.concatenate(values)[back] for values in columns]
    return AtBest._make([*of_all, all(part.has_room for part in parts)])
