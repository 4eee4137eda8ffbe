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

from controllers.books import Books, Floats
from controllers.cost_model import CostModel
from controllers.rank_book import PASSES_NONE, Passed

# Price of work on an idle worker: without it a burst of siblings, each served as soon here as
# there, computes its common prefix on every worker.
IDLE_PRICE = 0.1
MIN_SHARE_OF_ALONE = 0.3  # a prefill that joins a queue costs at least this share of it alone


class Work(NamedTuple):
    """Requests as the workers would see them. Of a single one: numbers, and arrays by worker. Of
    several: numbers have shape (requests, 1), arrays (requests, workers)."""

    num_tokens: Floats | float
    num_blocks: Floats | float  # those that are not full too
    block_size: int
    cached_blocks: Floats
    onboard_ms: Floats | None  # to bring cached blocks from a lower medium; None: there are none
    output_tokens: Floats | float  # expected
    has_full_hit: bool  # one of them is cached as a whole somewhere

    def at(self, row: int) -> Work:
        """On one worker: no array has an axis of workers."""
        return self._replace(
            num_tokens=_on_one_worker(self.num_tokens),
            num_blocks=_on_one_worker(self.num_blocks),
            output_tokens=_on_one_worker(self.output_tokens),
            cached_blocks=self.cached_blocks[..., row],
            onboard_ms=None if self.onboard_ms is None else self.onboard_ms[..., row],
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
        """Of one request."""
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
    """What is on each worker, as requests of one rank see it."""

    speed: Floats
    queued_tokens: Floats  # own ones before it, with which it may share iterations
    queued_ms: Floats
    num_decoding: Floats
    active_blocks: Floats
    held_blocks: Floats  # with what the running requests will write
    capacity_blocks: Floats
    backlog_ms: Floats
    start_ms: Floats  # of a request that finds blocks and a place
    places_ms: Floats | None  # wait for a place in the batch; None: there is one everywhere
    price: Floats  # of a ms of service: itself and what later requests pay for it
    idle_ms: Floats  # a step of decoding alone
    decode_ms: Floats  # a step with what runs
    shared_ms: Floats  # the same, 0 without anybody who decodes
    has_queue: bool  # somewhere
    free_blocks: float  # at least, on every worker

    def at(self, row: int) -> Loads:
        """Of one worker, as numbers."""
        numbers = [v[row] if isinstance(v, np.ndarray) else v for v in self]
        return Loads(*numbers)  # type: ignore[arg-type]

    def promise(self, num_blocks: float) -> Loads:
        """With so many blocks spoken for."""
        return self._replace(
            held_blocks=self.held_blocks + num_blocks, free_blocks=self.free_blocks - num_blocks
        )


def loads_of(
    books: Books,
    model: CostModel,
    weights: Weights,
    block_size: int,
    now_ms: float,
    passed: Passed = PASSES_NONE,
) -> Loads:
    """By row. What such a request passes at the gates keeps it waiting nowhere."""
    queued = np.maximum(0.0, books.prefill_tokens - passed.own_tokens)
    others_tokens = np.maximum(0.0, books.others_prefill_tokens - passed.others_tokens)
    num_requests = _num_requests(books, passed)
    num_decoding = np.maximum(0.0, num_requests - (queued > 0))
    active = books.active_blocks()
    decode_ms = model.decode_ms(active / weights.reference_blocks, books.speed)
    # A running mean of others' requests is rarely exactly 0.
    shared_ms = decode_ms * (num_decoding >= 0.5)

    has_queue = _most(queued) > 0
    backlog_ms = np.maximum(0.0, books.prefill_end_ms - now_ms)
    if passed is not PASSES_NONE:
        backlog_ms = backlog_ms * _share_ahead(books, passed)
    if _most(others_tokens) > 0:
        backlog_ms = backlog_ms + model.prefill_ms(others_tokens, shared_ms, books.speed)
    # Half an iteration on average until it can join one; a whole one if others wait to join.
    joins_ms = 0.5 * shared_ms
    busy = books.busy(now_ms)
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
        start_ms=np.maximum(backlog_ms, joins_ms * (1.0 + (queued > 0)) if has_queue else joins_ms),
        places_ms=_places_ms(num_requests, weights),
        price=1.0 + weights.theta * (IDLE_PRICE + busy / (1.0 - busy)),
        idle_ms=model.idle_ms * books.speed,
        decode_ms=decode_ms,
        shared_ms=shared_ms,
        has_queue=has_queue,
        free_blocks=-_most(held - books.capacity_blocks),
    )


def cost_of(work: Work, loads: Loads, model: CostModel, weights: Weights) -> Costs:
    """Costs on the workers of `loads`."""
    uncached = work.num_tokens - work.cached_blocks * work.block_size
    if work.has_full_hit:
        uncached = np.maximum(0.0, uncached)
    service, standstill = _service(uncached, work, loads, model)

    room_ms, start = np.zeros_like(service), loads.start_ms
    need = (work.num_tokens + work.output_tokens) / work.block_size
    if _most(need) > loads.free_blocks:
        room_ms = _memory_wait_ms(loads, need, weights.held_ms)
        start = np.maximum(start, room_ms)
    if loads.places_ms is not None:  # places come free after the backlog
        room_ms, start = room_ms + loads.places_ms, start + loads.places_ms

    new_blocks = work.num_blocks - work.cached_blocks
    share = (loads.active_blocks + new_blocks) / weights.reference_blocks
    after_ms = np.maximum(loads.decode_ms, model.decode_ms(share, loads.speed))
    own_delay = work.output_tokens * (after_ms - loads.idle_ms)
    others_delay = work.output_tokens * (after_ms - loads.decode_ms) + standstill
    slowdown = own_delay + loads.num_decoding * others_delay
    return Costs(
        uncached_tokens=uncached,
        room_ms=room_ms,
        start_ms=start,
        service_ms=service,
        cost_ms=start + loads.price * service + weights.beta * slowdown,
    )


def _service(
    uncached: Floats, work: Work, loads: Loads, model: CostModel
) -> tuple[Floats, Floats]:
    """Its prefill, and how long those that decode stand still for it."""
    shared_ms = loads.shared_ms
    service = model.prefill_ms(uncached, shared_ms, loads.speed)
    if loads.has_queue:
        queued = loads.queued_tokens
        joined_ms = model.prefill_ms(queued + uncached, shared_ms, loads.speed) - loads.queued_ms
        joined_ms = np.maximum(joined_ms, MIN_SHARE_OF_ALONE * service)
        service = np.where(queued > 0, joined_ms, service)
    if work.has_full_hit:
        service = np.where(uncached > 0, service, loads.decode_ms)
    if work.onboard_ms is not None:
        service = service + work.onboard_ms
    standstill = service - shared_ms
    if work.has_full_hit:
        standstill = np.where(uncached > 0, standstill, 0.0)
    return service, standstill


def _num_requests(books: Books, passed: Passed) -> Floats:
    others = np.maximum(0.0, books.others_requests - passed.others_requests)
    known = books.num_requests + books.shared_requests
    if passed is not PASSES_NONE:
        known = known - passed.own_requests - passed.shared_requests
    return known + others


def _share_ahead(books: Books, passed: Passed) -> Floats:
    """Of the known work, what such a request does not pass."""
    known = books.prefill_tokens + books.shared_tokens
    passed_tokens = passed.own_tokens + passed.shared_tokens
    ahead = np.maximum(0.0, known - passed_tokens)
    return np.where(np.greater(passed_tokens, 0.0), ahead / np.maximum(1.0, known), 1.0)


def _memory_wait_ms(loads: Loads, need: Floats | float, held_ms: float) -> Floats:
    """Blocks that are missing over the rate at which held ones come free; all of them at most."""
    held = loads.held_blocks
    missing = np.minimum(held, np.maximum(0.0, held + need - loads.capacity_blocks))
    return np.asarray(missing / np.maximum(held, 1.0) * held_ms)


def _places_ms(num_requests: Floats, weights: Weights) -> Floats | None:
    """A full batch lets one more in `max_running` times while one request is held."""
    if _most(num_requests) + 1.0 <= weights.max_running:
        return None
    too_many = np.maximum(0.0, num_requests + 1.0 - weights.max_running)
    return np.asarray(too_many * (weights.held_ms / weights.max_running))


def _most(values: Floats | float) -> float:
    """On few values a tenth of what max() takes."""
    return values if isinstance(values, float) else float(values.flat[values.argmax()])


def _on_one_worker(numbers: Floats | float) -> Floats | float:
    return numbers[:, 0] if isinstance(numbers, np.ndarray) else numbers
