"""What requests would cost on each worker, in ms of somebody's time to first token.

    cost = start + service                                     its own time to first token
         + theta (0.1 + busy / (1 - busy)) service             what later requests pay for this work
         + beta (own slower decode + others' slower decode + others' standstill during the prefill)

Pure arithmetic on the rows of `Books`; knows no policy of ties, staleness or fallbacks. Arrays are
by worker, or by request and worker: what is said of one request holds for many at once.
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
    """Requests as the workers would see them. Per request numbers have shape (requests, 1), or are
    plain for a single one; arrays by worker have one value for each row of the books."""

    num_tokens: Floats | float
    block_size: int
    cached_blocks: Floats
    onboard_ms: Floats  # to bring cached blocks from a lower medium
    output_tokens: Floats | float  # expected

    def at(self, row: int) -> Work:
        """On one worker."""
        here = slice(row, row + 1)
        return self._replace(
            cached_blocks=self.cached_blocks[..., here], onboard_ms=self.onboard_ms[..., here]
        )


class Costs(NamedTuple):
    """`start_ms` + `service_ms` is the predicted time to first token. `room_ms` is the part of the
    wait until there are blocks and a place in the batch; 0: there are."""

    uncached_tokens: Floats
    backlog_ms: Floats
    room_ms: Floats
    start_ms: Floats
    service_ms: Floats
    cost_ms: Floats

    def of(self, index: int) -> Costs:
        """Of one request."""
        return Costs(*(values[index] for values in self))


class Weights(NamedTuple):
    """`beta`: ms of time to first token that one ms of somebody's decode delay counts as. `theta`:
    weight of the congestion price. `held_ms`: mean time from a first token to the end.
    `max_running`: requests that a worker runs together; the others wait. `reference_blocks`: what
    shares of blocks are shares of."""

    beta: float
    theta: float
    held_ms: float
    mean_output_tokens: float
    reference_blocks: float
    max_running: float = math.inf


class Loads(NamedTuple):
    """What is on each worker, as requests of one rank see it."""

    speed: Floats
    queued_tokens: Floats  # own ones before it, with which it may share iterations
    queued_ms: Floats
    num_requests: Floats
    num_decoding: Floats
    active_blocks: Floats
    held_blocks: Floats  # with what the running requests will write
    capacity_blocks: Floats
    backlog_ms: Floats
    busy: Floats
    idle_ms: Floats  # a step of decoding alone
    decode_ms: Floats  # a step with what runs
    shared_ms: Floats  # the same, 0 without anybody who decodes

    def at(self, row: int) -> Loads:
        """Of one worker."""
        return Loads(*(values[row : row + 1] for values in self))


def loads_of(
    books: Books,
    model: CostModel,
    weights: Weights,
    block_size: int,
    now_ms: float,
    passed: Passed = PASSES_NONE,
) -> Loads:
    """By row. What such a request passes at the gates keeps it waiting nowhere."""
    speed, size = books.speed, block_size
    queued = np.maximum(0.0, books.prefill_tokens - passed.own_tokens)
    known_tokens = books.prefill_tokens + books.shared_tokens
    passed_tokens = passed.own_tokens + passed.shared_tokens
    ahead_tokens = np.maximum(0.0, known_tokens - passed_tokens)
    known_requests = books.num_requests + books.shared_requests
    others_requests = np.maximum(0.0, books.others_requests - passed.others_requests)
    num_requests = known_requests - passed.own_requests - passed.shared_requests + others_requests
    num_decoding = np.maximum(0.0, num_requests - (queued > 0))
    is_decoding = num_decoding >= 0.5  # a running mean of others' requests is rarely exactly 0
    active = books.active_blocks()
    # One call for several questions: arithmetic on small arrays costs the same for all of them.
    shares = np.array([np.zeros(len(books)), active]) / weights.reference_blocks
    idle_ms, decode_ms = model.decode_ms(shares, speed)
    shared_ms = np.where(is_decoding, decode_ms, 0.0)
    others_tokens = np.maximum(0.0, books.others_prefill_tokens - passed.others_tokens)
    queued_ms, others_ms = model.prefill_ms(np.array([queued, others_tokens]), shared_ms, speed)
    share_ahead = np.where(
        np.greater(passed_tokens, 0.0), ahead_tokens / np.maximum(1.0, known_tokens), 1.0
    )
    return Loads(
        speed=speed,
        queued_tokens=queued,
        queued_ms=queued_ms,
        num_requests=num_requests,
        num_decoding=num_decoding,
        active_blocks=active,
        held_blocks=active + num_requests * (weights.mean_output_tokens / size),
        capacity_blocks=books.capacity_blocks,
        backlog_ms=np.maximum(0.0, books.prefill_end_ms - now_ms) * share_ahead + others_ms,
        busy=books.busy(now_ms),
        idle_ms=idle_ms,
        decode_ms=decode_ms,
        shared_ms=shared_ms,
    )


def cost_of(work: Work, loads: Loads, model: CostModel, weights: Weights) -> Costs:
    """Costs on the workers of `loads`."""
    size, output = work.block_size, work.output_tokens
    queued, shared_ms = loads.queued_tokens, loads.shared_ms
    uncached = np.maximum(0.0, work.num_tokens - work.cached_blocks * size)
    new_blocks = np.ceil(work.num_tokens / size) - work.cached_blocks
    share = (loads.active_blocks + new_blocks) / weights.reference_blocks
    after_ms = np.maximum(loads.decode_ms, model.decode_ms(share, loads.speed))
    alone_ms, behind_ms = model.prefill_ms(
        np.array([uncached, queued + uncached]), shared_ms, loads.speed
    )
    joined_ms = np.maximum(behind_ms - loads.queued_ms, MIN_SHARE_OF_ALONE * alone_ms)
    prefill_ms = np.where(queued > 0, joined_ms, alone_ms)
    service = np.where(uncached > 0, prefill_ms, loads.decode_ms) + work.onboard_ms

    need = (work.num_tokens + output) / size
    memory_ms = _memory_wait_ms(loads, need, weights.held_ms)
    places_ms = _place_wait_ms(loads.num_requests, weights)
    start = np.maximum(loads.backlog_ms, np.where(queued > 0, shared_ms, 0.5 * shared_ms))
    start = np.maximum(start, memory_ms) + places_ms  # places come free after the backlog

    standstill = np.where(uncached > 0, service - shared_ms, 0.0)
    slowdown = output * (after_ms - loads.idle_ms) + loads.num_decoding * (
        output * (after_ms - loads.decode_ms) + standstill
    )
    price = weights.theta * (IDLE_PRICE + loads.busy / (1.0 - loads.busy)) * service
    return Costs(
        uncached_tokens=uncached,
        backlog_ms=loads.backlog_ms + np.zeros_like(uncached),
        room_ms=memory_ms + places_ms,
        start_ms=start,
        service_ms=service,
        cost_ms=start + service + price + weights.beta * slowdown,
    )


def _memory_wait_ms(loads: Loads, need: Floats | float, held_ms: float) -> Floats:
    """Blocks that are missing over the rate at which held ones come free; all of them at most."""
    held = loads.held_blocks
    missing = np.minimum(held, np.maximum(0.0, held + need - loads.capacity_blocks))
    return np.asarray(missing / np.maximum(held, 1.0) * held_ms)


def _place_wait_ms(num_requests: Floats, weights: Weights) -> Floats:
    """A full batch lets one more in `max_running` times while one request is held."""
    too_many = np.maximum(0.0, num_requests + 1.0 - weights.max_running)
    return np.asarray(too_many * (weights.held_ms / weights.max_running))
