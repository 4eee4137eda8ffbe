"""What requests would cost on each worker, in ms of somebody's time to first token.

    cost = start + service                                     its own time to first token
         + theta (0.1 + busy / (1 - busy)) service             what later requests pay for this work
         + beta (own slower decode + others' slower decode + others' standstill during the prefill)

Pure arithmetic on `loads`; knows no policy of ties, staleness or fallbacks. Arrays are by worker,
or by request and worker: what is said of one request holds for many at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from controllers.cost_model import CostModel
from controllers.loads import Loads, Steady, Weights
from controllers.numbers import (
    Floats,
    Numbers,
    at_least,
    larger,
    largest,
    not_negative,
    rounded_up,
    smallest,
    where_positive,
)

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

    def of(self, index: int) -> Work:
        """One of several."""
        return Work(
            _part(self.uncached_tokens, index),
            _part(self.prefill_ms, index),
            _part(self.num_iterations, index),
            _part(self.new_blocks, index),
            _number(self.need_blocks, index),
            _number(self.output_tokens, index),
            None if self.onboard_ms is None else _part(self.onboard_ms, index),
            self.has_full_hit,
        )

    def of_each(self, indices: Sequence[int]) -> Work:
        """Some of several."""
        parts = [v[indices] if isinstance(v, np.ndarray) else v for v in self]
        return Work(*parts)  # type: ignore[arg-type]


def work_of(
    model: CostModel,
    block_size: int,
    num_tokens: Numbers,
    output_tokens: Numbers,
    cached_blocks: Numbers,
    onboard_ms: Numbers | None,
) -> Work:
    """Shapes as in Work."""
    uncached: Numbers = num_tokens - cached_blocks * block_size
    has_full_hit = smallest(uncached) <= 0.0
    if has_full_hit:
        uncached = not_negative(uncached)
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
        """Of one request of several. What is the same for all has no axis of requests."""
        return Costs(*[values[index] if values.ndim > 1 else values for values in self])

    def service_at(self, row: int) -> Service:
        """Of a single request on one worker."""
        return Service(float(self.uncached_tokens[row]), float(self.service_ms[row]))


class Service(NamedTuple):
    """What a request takes on its worker."""

    uncached_tokens: float
    ms: float


def cost_of(work: Work, loads: Loads, model: CostModel, weights: Weights) -> Costs:
    """Costs on the workers of `loads`, whose values are arrays."""
    on = loads.steady
    service, standstill = _service(work, on, model)

    service_ms = np.asarray(service)
    none = np.zeros(service_ms.shape)
    room_ms: Numbers = none
    start = loads.start_ms
    if largest(work.need_blocks) > loads.free_blocks:
        room_ms = _memory_wait_ms(loads, work.need_blocks, weights.held_ms)
        start = larger(start, room_ms)
    if loads.places_ms is not None:  # places come free after the backlog
        room_ms, start = room_ms + loads.places_ms, start + loads.places_ms

    share = (on.active_blocks + work.new_blocks) / weights.reference_blocks
    after_ms = larger(on.decode_ms, model.decode_ms(share, on.speed))
    delay_ms = after_ms * on.num_together - on.before_ms  # of one step, in sum
    slowdown = work.output_tokens * delay_ms + on.num_decoding * standstill
    return Costs(
        uncached_tokens=_by_row(work.uncached_tokens, none),
        room_ms=np.asarray(room_ms),
        start_ms=np.asarray(start),
        service_ms=service_ms,
        cost_ms=np.asarray(start + loads.price * service + weights.beta * slowdown),
    )


def _by_row(values: Numbers, none: Floats) -> Floats:
    return values + none if isinstance(values, float) else values


def service_on(work: Work, steady: Steady, model: CostModel) -> Service:
    """Of a single request on one worker, in numbers."""
    service, _ = _service(work, steady, model)
    return Service(float(work.uncached_tokens), float(service))


def _service(work: Work, on: Steady, model: CostModel) -> tuple[Numbers, Numbers]:
    """Its prefill, and how long those that decode stand still for it."""
    shared_ms, uncached, queued = on.shared_ms, work.uncached_tokens, on.queued_tokens
    service = work.prefill_ms * on.speed + work.num_iterations * shared_ms
    if largest(queued) > 0.0:  # where there is no queue it joins nothing, and takes as long
        joined_ms = model.prefill_ms(queued + uncached, shared_ms, on.speed) - on.queued_ms
        service = larger(joined_ms, MIN_SHARE_OF_ALONE * service)
    if work.has_full_hit:
        service = where_positive(uncached, service, on.decode_ms)
    if work.onboard_ms is not None:
        service = service + work.onboard_ms
    standstill = service - shared_ms
    if work.has_full_hit:
        standstill = where_positive(uncached, standstill, 0.0)
    return service, standstill


def _memory_wait_ms(loads: Loads, need: Numbers, held_ms: float) -> Numbers:
    """Blocks that are missing over the rate at which held ones come free; all of them at most."""
    held = loads.held_blocks()
    missing = np.minimum(held, not_negative(held + need - loads.steady.capacity_blocks))
    return missing / at_least(1.0, held) * held_ms


def _part(values: Numbers, index: int) -> Numbers:
    """A plain number is that of all."""
    return values if isinstance(values, float) else values[index]


def _number(values: Numbers, index: int) -> float:
    return values if isinstance(values, float) else float(values[index, 0])
