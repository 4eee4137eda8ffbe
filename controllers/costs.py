"""What a request would cost on each worker, in ms of somebody's time to first token.

    cost = start + service                                     its own time to first token
         + theta (0.1 + busy / (1 - busy)) service             what later requests pay for this work
         + beta (own slower decode + others' slower decode + others' standstill during the prefill)

Pure arithmetic on the rows of `Books`; knows no policy of ties, staleness or fallbacks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from controllers.books import Books, Floats
from controllers.cost_model import CostModel
from controllers.rank_book import PASSES_NONE, Passed

# Price of work on an idle worker: without it a burst of siblings, each served as soon here as
# there, computes its common prefix on every worker.
IDLE_PRICE = 0.1
MIN_SHARE_OF_ALONE = 0.3  # a prefill that joins a queue costs at least this share of it alone


class Work(NamedTuple):
    """A request as the workers would see it. Arrays have one value for each row of the books."""

    num_tokens: int
    block_size: int
    cached_blocks: Floats
    onboard_ms: Floats  # to bring cached blocks from a lower medium
    output_tokens: float  # expected


class Costs(NamedTuple):
    """By row. `start_ms` + `service_ms` is the predicted time to first token."""

    uncached_tokens: Floats
    backlog_ms: Floats
    start_ms: Floats
    service_ms: Floats
    cost_ms: Floats


class Weights(NamedTuple):
    """`beta`: ms of time to first token that one ms of somebody's decode delay counts as. `theta`:
    weight of the congestion price. `held_ms`: mean time from a first token to the end.
    `max_running`: requests that a worker runs together; the others wait."""

    beta: float
    theta: float
    held_ms: float
    mean_output_tokens: float
    max_running: float = math.inf


def cost_of(
    work: Work,
    books: Books,
    model: CostModel,
    reference_blocks: float,
    weights: Weights,
    now_ms: float,
    passed: Passed = PASSES_NONE,
) -> Costs:
    """Costs by row. What the request will pass at the gates keeps it waiting nowhere."""
    size, output = work.block_size, work.output_tokens
    speed = books.speed
    uncached = np.maximum(0.0, work.num_tokens - work.cached_blocks * size)
    queued = np.maximum(0.0, books.prefill_tokens - passed.own_tokens)
    others_requests = np.maximum(0.0, books.others_requests - passed.others_requests)
    num_requests = books.num_requests - passed.own_requests + others_requests
    num_decoding = np.maximum(0.0, num_requests - (queued > 0))
    is_decoding = num_decoding >= 0.5  # a running mean of others' requests is rarely exactly 0
    new_blocks = np.ceil(work.num_tokens / size) - work.cached_blocks
    active = books.active_blocks()

    # One call for several questions: arithmetic on small arrays costs the same for all of them.
    shares = np.array([np.zeros(len(books)), active, active + new_blocks]) / reference_blocks
    idle_ms, decode_ms, after_ms = model.decode_ms(shares, speed)
    after_ms = np.maximum(decode_ms, after_ms)
    shared_ms = np.where(is_decoding, decode_ms, 0.0)
    others_tokens = np.maximum(0.0, books.others_prefill_tokens - passed.others_tokens)
    alone_ms, behind_ms, queued_ms, others_ms = model.prefill_ms(
        np.array([uncached, queued + uncached, queued, others_tokens]), shared_ms, speed
    )
    joined_ms = np.maximum(behind_ms - queued_ms, MIN_SHARE_OF_ALONE * alone_ms)
    prefill_ms = np.where(queued > 0, joined_ms, alone_ms)
    service = np.where(uncached > 0, prefill_ms, decode_ms) + work.onboard_ms
    share_ahead = np.where(
        np.greater(passed.own_tokens, 0.0), queued / np.maximum(1.0, books.prefill_tokens), 1.0
    )
    backlog = np.maximum(0.0, books.prefill_end_ms - now_ms) * share_ahead + others_ms

    need = (work.num_tokens + output) / size
    held = active + num_requests * (weights.mean_output_tokens / size)
    start = np.maximum(backlog, np.where(queued > 0, shared_ms, 0.5 * shared_ms))
    start = np.maximum(start, _memory_wait_ms(held, need, books.capacity_blocks, weights.held_ms))
    start = start + _slot_wait_ms(num_requests, weights)  # places come free after the backlog

    busy = books.busy(now_ms)
    standstill = np.where(uncached > 0, service - shared_ms, 0.0)
    slowdown = output * (after_ms - idle_ms) + num_decoding * (
        output * (after_ms - decode_ms) + standstill
    )
    price = weights.theta * (IDLE_PRICE + busy / (1.0 - busy)) * service
    return Costs(
        uncached, backlog, start, service, start + service + price + weights.beta * slowdown
    )


def _memory_wait_ms(held: Floats, need: float, capacity: Floats, held_ms: float) -> Floats:
    """Blocks that are missing over the rate at which held ones come free; all of them at most."""
    missing = np.minimum(held, np.maximum(0.0, held + need - capacity))
    return np.asarray(missing / np.maximum(held, 1.0) * held_ms)


def _slot_wait_ms(num_requests: Floats, weights: Weights) -> Floats:
    """A full batch lets one more in `max_running` times while one request is held."""
    too_many = np.maximum(0.0, num_requests + 1.0 - weights.max_running)
    return np.asarray(too_many * (weights.held_ms / weights.max_running))
