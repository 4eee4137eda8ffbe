"""What is on each worker, in ms that a request would have to wait there.

In two steps. What is steady changes with the books and the curve only; it is most of the work, and
kept (see `steady_loads`). What time and the mean of finished requests change is worked out for
every decision. Arrays are by row of the books; of one worker everything is a number. On so few
values an operation costs 0.3 us, and 1.6 us if shapes differ, so terms that are 0 everywhere are
left out after one look.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from controllers.cost_model import CostModel
from controllers.entries import Entries
from controllers.numbers import (
    Floats,
    Numbers,
    above,
    at_least,
    constant,
    is_positive,
    larger,
    largest,
    not_negative,
    smallest,
    where_positive,
)
from controllers.rank_book import PASSES_NONE, Passed

# Price of work on an idle worker: without it a burst of siblings, each served as soon here as
# there, computes its common prefix on every worker.
IDLE_PRICE = 0.1
_ONE = constant(1.0)


class BusyPrice:
    """Of a ms of service on workers with a share of busy time: 1 + theta (0.1 + busy / (1 - busy)),
    in half as many steps."""

    def __init__(self, theta: float) -> None:
        self._start = constant(1.0 + theta * (IDLE_PRICE - 1.0))
        self._theta = constant(theta)

    def at(self, busy: Floats) -> Floats:
        return self._start + self._theta / (_ONE - busy)


class Weights(NamedTuple):
    """`beta`: ms of time to first token that one ms of somebody's decode delay counts as.
    `price`: of congestion. `held_ms`: mean time from a first token to the end.
    `max_running`: requests that a worker runs together; the others wait. `reference_blocks`: what
    shares of blocks are shares of."""

    beta: Floats  # a constant
    price: BusyPrice
    held_ms: float
    mean_output_tokens: float
    reference_blocks: float
    max_running: float = math.inf


class Steady(NamedTuple):
    """As requests of one rank see it."""

    speed: Numbers
    capacity_blocks: Numbers
    active_blocks: Numbers
    free_blocks: Numbers  # the difference
    queued_tokens: Numbers  # own ones before it, with which it may share iterations
    queued_ms: Numbers
    others_ms: Numbers  # to prefill what nobody tells of
    num_requests: Numbers
    num_decoding: Numbers
    idle_ms: Numbers  # a step of decoding alone
    decode_ms: Numbers  # a step with what runs
    num_together: Numbers  # that decode when one more has joined
    before_ms: Numbers  # what a step of each of these takes before that, in sum
    shared_ms: Numbers  # the same, 0 without anybody who decodes
    joins_ms: Numbers  # until it can join an iteration


class Loads(NamedTuple):
    """What a request of one rank finds now, by row of the books."""

    steady: Steady
    backlog_ms: Numbers
    start_ms: Numbers  # of a request that finds blocks and a place
    places_ms: Numbers | None  # wait for a place in the batch; None: there is one everywhere
    price: Numbers  # of a ms of service: itself and what later requests pay for it
    output_blocks: float  # that a running request will write
    free_blocks: float  # on every worker there are at least so many, if they write them
    promised_blocks: Numbers = 0.0  # spoken for

    def held_blocks(self) -> Numbers:
        """With what the running requests will write."""
        held = self.steady.active_blocks + self.steady.num_requests * self.output_blocks
        return held + self.promised_blocks

    def promise(self, num_blocks: Numbers) -> Loads:
        """With so many blocks spoken for."""
        loads = self._replace(promised_blocks=num_blocks)
        free_blocks = smallest(self.steady.capacity_blocks - loads.held_blocks())
        return loads._replace(free_blocks=free_blocks)


def steady_of(
    entries: Entries, model: CostModel, reference_blocks: float, passed: Passed = PASSES_NONE
) -> Steady:
    """What such a request passes at the gates keeps it waiting nowhere."""
    speed, active = entries.speed, entries.active_blocks()
    queued = not_negative(entries.prefill_tokens - passed.own_tokens)
    is_queued = is_positive(queued)
    num_requests = _num_requests(entries, passed)
    num_decoding = not_negative(num_requests - is_queued)
    idle_ms = model.idle_ms * speed
    decode_ms = model.decode_ms(active / reference_blocks, speed)
    # A running mean of others' requests is rarely exactly 0.
    shared_ms = decode_ms * above(0.49, num_decoding)
    others_tokens = not_negative(entries.others_prefill_tokens - passed.others_tokens)
    return Steady(
        speed=speed,
        capacity_blocks=entries.capacity_blocks,
        active_blocks=active,
        free_blocks=entries.capacity_blocks - active,
        queued_tokens=queued,
        queued_ms=_prefill_ms(model, queued, shared_ms, speed),
        others_ms=_prefill_ms(model, others_tokens, shared_ms, speed),
        num_requests=num_requests,
        num_decoding=num_decoding,
        idle_ms=idle_ms,
        decode_ms=decode_ms,
        num_together=1.0 + num_decoding,
        before_ms=idle_ms + num_decoding * decode_ms,
        shared_ms=shared_ms,
        # Half an iteration on average until it can join one; a whole one if others wait to join.
        joins_ms=0.5 * shared_ms * (1.0 + is_queued),
    )


def loads_of(
    steady: Steady,
    prefill_end_ms: Numbers,
    busy: Floats,
    weights: Weights,
    block_size: int,
    now_ms: float,
    share_ahead: Numbers | None = None,
) -> Loads:
    """`share_ahead`: of the known work, what such a request does not pass; None: all of it."""
    backlog_ms = not_negative(prefill_end_ms - now_ms)
    if share_ahead is not None:
        backlog_ms = backlog_ms * share_ahead
    backlog_ms = backlog_ms + steady.others_ms
    output_blocks = weights.mean_output_tokens / block_size
    most_requests = largest(steady.num_requests)
    has_places = most_requests + 1.0 <= weights.max_running
    return Loads(
        steady=steady,
        backlog_ms=backlog_ms,
        start_ms=larger(backlog_ms, steady.joins_ms),
        places_ms=None if has_places else _places_ms(steady.num_requests, weights),
        price=weights.price.at(busy),
        output_blocks=output_blocks,
        free_blocks=smallest(steady.free_blocks) - most_requests * output_blocks,
    )


def share_ahead(entries: Entries, passed: Passed) -> Numbers:
    """Of the known work, what a request does not pass."""
    known = entries.prefill_tokens + entries.shared_tokens
    passed_tokens = passed.own_tokens + passed.shared_tokens
    ahead = not_negative(known - passed_tokens)
    return where_positive(passed_tokens, ahead / at_least(1.0, known), 1.0)


def _prefill_ms(
    model: CostModel, num_tokens: Numbers, shared_ms: Numbers, speed: Numbers
) -> Numbers:
    if largest(num_tokens) <= 0.0:
        return num_tokens
    return model.prefill_ms(num_tokens, shared_ms, speed)


def _num_requests(entries: Entries, passed: Passed) -> Numbers:
    known = entries.num_requests + entries.shared_requests
    if passed is PASSES_NONE:
        return known + not_negative(entries.others_requests)
    others = not_negative(entries.others_requests - passed.others_requests)
    return known - passed.own_requests - passed.shared_requests + others


def _places_ms(num_requests: Numbers, weights: Weights) -> Numbers:
    """A full batch lets one more in `max_running` times while one request is held."""
    too_many = not_negative(num_requests + 1.0 - weights.max_running)
    return too_many * (weights.held_ms / weights.max_running)
