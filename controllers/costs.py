"""What requests would cost on each worker, in ms of somebody's time to first token.

    cost = start + service                                     its own time to first token
         + theta (0.1 + busy / (1 - busy)) service             what later requests pay for this work
         + beta (own slower decode + others' slower decode + others' standstill during the prefill)

Pure arithmetic on the rows of `Books`; knows no policy of ties, staleness or fallbacks. Arrays are
by worker, or by request and worker: what is said of one request holds for many at once. On so few
values an operation costs 0.3 us, and 1.6 us if shapes differ, so terms that are 0 everywhere are
left out after one look.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from controllers.books import View
from controllers.cost_model import CostModel
from controllers.numbers import (
    Floats,
    Numbers,
    above,
    at_least,
    larger,
    largest,
    rounded_up,
    where_positive,
)
from controllers.rank_book import PASSES_NONE, Passed

# Price of work on an idle worker: without it a burst of siblings, each served as soon here as
# there, computes its common prefix on every worker.
IDLE_PRICE = 0.1
MIN_SHARE_OF_ALONE = 0.3  # a prefill that joins a queue costs at least this share of it alone


class Work(NamedTuple):
    """Requests as the workers would see them, as far as loads do not matter. Of a single one:
    numbers, and arrays by worker. Of several: numbers have shape (requests, 1), arrays
    (requests, workers)."""

    uncached_tokens: Numbers
    prefill_ms: Numbers  # at a speed of 1, on a worker that does nothing else
    num_iterations: Numbers
    new_blocks: Numbers
    need_blocks: Numbers  # number: with its expected output
    output_tokens: Numbers  # number, expected
    onboard_ms: Numbers | None  # to bring cached blocks from a lower medium; None: there are none
    has_full_hit: bool  # one of them is cached as a whole somewhere

    def at(self, row: int) -> Work:
        """On one worker: nothing has an axis of workers."""
        return Work(*[_on_one_worker(values, row) for values in self])  # type: ignore[arg-type]


def work_of(
    model: CostModel,
    block_size: int,
    num_tokens: Numbers,
    output_tokens: Numbers,
    cached_blocks: Floats,
    onboard_ms: Floats | None,
) -> Work:
    """Shapes as in Work."""
    uncached: Numbers = num_tokens - cached_blocks * block_size
    has_full_hit = -largest(-uncached) <= 0.0
    if has_full_hit:
        uncached = at_least(0.0, uncached)
    prefill_ms, num_iterations = model.prefill_parts(uncached)
    return Work(
        uncached_tokens=uncached,
        prefill_ms=prefill_ms,
        num_iterations=num_iterations,
        new_blocks=rounded_up(num_tokens / block_size) - cached_blocks,
        need_blocks=(num_tokens + output_tokens) / block_size,
        output_tokens=output_tokens,
        onboard_ms=onboard_ms,
        has_full_hit=has_full_hit,
    )


class Costs(NamedTuple):
    """`start_ms` + `service_ms` is the predicted time to first token. `room_ms` is the part of the
    wait until there are blocks and a place in the batch; 0: there are."""

    uncached_tokens: Floats
    room_ms: Floats
    start_ms: Floats
    service_ms: Floats
    cost_ms: Floats

    def of(self, index: int) -> Costs:
        """Of one request of several, or of one worker as numbers."""
        return Costs(*[values[index] for values in self])


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
    """What is on each worker, as requests of one rank see it: arrays by row of the books, or the
    numbers of one worker."""

    speed: Numbers
    queued_tokens: Numbers  # own ones before it, with which it may share iterations
    queued_ms: Numbers
    num_decoding: Numbers
    active_blocks: Numbers
    held_blocks: Numbers  # with what the running requests will write
    capacity_blocks: Numbers
    backlog_ms: Numbers
    start_ms: Numbers  # of a request that finds blocks and a place
    places_ms: Numbers | None  # wait for a place in the batch; None: there is one everywhere
    price: Numbers  # of a ms of service: itself and what later requests pay for it
    idle_ms: Numbers  # a step of decoding alone
    decode_ms: Numbers  # a step with what runs
    shared_ms: Numbers  # the same, 0 without anybody who decodes
    has_queue: bool  # somewhere
    free_blocks: float  # at least, on every worker

    def promise(self, num_blocks: float) -> Loads:
        """With so many blocks spoken for."""
        return self._replace(
            held_blocks=self.held_blocks + num_blocks, free_blocks=self.free_blocks - num_blocks
        )


def loads_of(
    books: View,
    model: CostModel,
    weights: Weights,
    block_size: int,
    now_ms: float,
    passed: Passed = PASSES_NONE,
) -> Loads:
    """What such a request passes at the gates keeps it waiting nowhere."""
    queued: Numbers = at_least(0.0, books.prefill_tokens - passed.own_tokens)
    has_queue = largest(queued) > 0.0
    is_queued = above(0.0, queued) if has_queue else 0.0
    num_requests = _num_requests(books, passed)
    num_decoding = at_least(0.0, num_requests - is_queued) if has_queue else num_requests
    active = books.active_blocks
    decode_ms = model.decode_ms(active / weights.reference_blocks, books.speed)
    # A running mean of others' requests is rarely exactly 0.
    shared_ms = decode_ms * above(0.49, num_decoding)

    backlog_ms = at_least(0.0, books.prefill_end_ms - now_ms)
    if passed is not PASSES_NONE:
        backlog_ms = backlog_ms * _share_ahead(books, passed)
    if largest(books.others_prefill_tokens) > 0.0:
        others_tokens = at_least(0.0, books.others_prefill_tokens - passed.others_tokens)
        backlog_ms = backlog_ms + model.prefill_ms(others_tokens, shared_ms, books.speed)
    # Half an iteration on average until it can join one; a whole one if others wait to join.
    joins_ms = 0.5 * shared_ms
    if has_queue:
        joins_ms = joins_ms * (1.0 + is_queued)
    held = active + num_requests * (weights.mean_output_tokens / block_size)
    return Loads(
        speed=books.speed,
        queued_tokens=queued,
        queued_ms=model.prefill_ms(queued, shared_ms, books.speed) if has_queue else queued,
        num_decoding=num_decoding,
        active_blocks=active,
        held_blocks=held,
        capacity_blocks=books.capacity_blocks,
        backlog_ms=backlog_ms,
        start_ms=larger(backlog_ms, joins_ms),
        places_ms=_places_ms(num_requests, weights),
        price=_price(books.busy, weights.theta),
        idle_ms=model.idle_ms * books.speed,
        decode_ms=decode_ms,
        shared_ms=shared_ms,
        has_queue=has_queue,
        free_blocks=-largest(held - books.capacity_blocks),
    )


def cost_of(work: Work, loads: Loads, model: CostModel, weights: Weights) -> Costs:
    """Costs on the workers of `loads`."""
    service, standstill = _service(work, loads, model)

    room_ms, start = 0.0 * service, loads.start_ms
    if largest(work.need_blocks) > loads.free_blocks:
        room_ms = _memory_wait_ms(loads, work.need_blocks, weights.held_ms)
        start = larger(start, room_ms)
    if loads.places_ms is not None:  # places come free after the backlog
        room_ms, start = room_ms + loads.places_ms, start + loads.places_ms

    share = (loads.active_blocks + work.new_blocks) / weights.reference_blocks
    after_ms = larger(loads.decode_ms, model.decode_ms(share, loads.speed))
    own_delay = work.output_tokens * (after_ms - loads.idle_ms)
    others_delay = work.output_tokens * (after_ms - loads.decode_ms) + standstill
    slowdown = own_delay + loads.num_decoding * others_delay
    return Costs(
        uncached_tokens=np.asarray(work.uncached_tokens),
        room_ms=np.asarray(room_ms),
        start_ms=np.asarray(start),
        service_ms=np.asarray(service),
        cost_ms=np.asarray(start + loads.price * service + weights.beta * slowdown),
    )


def _service(work: Work, loads: Loads, model: CostModel) -> tuple[Numbers, Numbers]:
    """Its prefill, and how long those that decode stand still for it."""
    shared_ms, uncached = loads.shared_ms, work.uncached_tokens
    service = work.prefill_ms * loads.speed + work.num_iterations * shared_ms
    if loads.has_queue:
        queued = loads.queued_tokens
        joined_ms = model.prefill_ms(queued + uncached, shared_ms, loads.speed) - loads.queued_ms
        joined_ms = larger(joined_ms, MIN_SHARE_OF_ALONE * service)
        service = where_positive(queued, joined_ms, service)
    if work.has_full_hit:
        service = where_positive(uncached, service, loads.decode_ms)
    if work.onboard_ms is not None:
        service = service + work.onboard_ms
    standstill = service - shared_ms
    if work.has_full_hit:
        standstill = where_positive(uncached, standstill, 0.0)
    return service, standstill


def _price(busy: Numbers, theta: float) -> Numbers:
    """1 + theta (0.1 + busy / (1 - busy)), in half as many steps."""
    return (1.0 + theta * (IDLE_PRICE - 1.0)) + theta / (1.0 - busy)


def _num_requests(books: View, passed: Passed) -> Numbers:
    known = books.num_requests + books.shared_requests
    if passed is PASSES_NONE:
        return known + at_least(0.0, books.others_requests)
    others = at_least(0.0, books.others_requests - passed.others_requests)
    return known - passed.own_requests - passed.shared_requests + others


def _share_ahead(books: View, passed: Passed) -> Numbers:
    """Of the known work, what such a request does not pass."""
    known = books.prefill_tokens + books.shared_tokens
    passed_tokens = passed.own_tokens + passed.shared_tokens
    ahead = at_least(0.0, known - passed_tokens)
    return where_positive(passed_tokens, ahead / at_least(1.0, known), 1.0)


def _memory_wait_ms(loads: Loads, need: Numbers, held_ms: float) -> Numbers:
    """Blocks that are missing over the rate at which held ones come free; all of them at most."""
    held = loads.held_blocks
    missing = np.minimum(held, at_least(0.0, held + need - loads.capacity_blocks))
    return missing / at_least(1.0, held) * held_ms


def _places_ms(num_requests: Numbers, weights: Weights) -> Numbers | None:
    """A full batch lets one more in `max_running` times while one request is held."""
    if largest(num_requests) + 1.0 <= weights.max_running:
        return None
    too_many = at_least(0.0, num_requests + 1.0 - weights.max_running)
    return too_many * (weights.held_ms / weights.max_running)


def _on_one_worker(values: Numbers | None, row: int) -> Numbers | None:
    if not isinstance(values, np.ndarray):
        return values
    if values.ndim == 1:
        return float(values[row])
    return values[:, row if values.shape[1] > 1 else 0]
