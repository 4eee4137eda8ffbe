"""The routing formulas of other projects, to compare with. Each gives a cost for every worker.

All see what a router of theirs would: exact cached prefixes, and of load what this router itself
booked. Formulas were written anew from their sources:

dynamo        NVIDIA Dynamo 1.6.1, `KvRouterConfig` and its cost; defaults: overlap credit 1,
              prefill load scale 1, active request weight 0. `dynamo_tuned` has 2, 32 and 32, which
              is within 3 % of the best of 67 peer settings on all rows of the recipe.
llmd          llm-d router v0.10.0, prefix, queue and KV utilisation scorers with weights 3, 2, 2.
sglang        sglang-router 0.3.2, cache_aware: gate at 64 requests and 1.5 times, match above 0.3.
trtllm        TensorRT-LLM, KvCacheAwareRouter: matched blocks less 0.25 for each active request.
trtllm_old    the same before load weights: requests as a share of a batch of 64 less the prompt's
              matched share.
mooncake      Mooncake (FAST'25), algorithm 1 with half the queue: least queued / 2 + uncached.
lmetric       LMetric (arXiv 2603.15202): uncached tokens times requests.
least_queued  fewest tokens that wait to be prefilled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from controllers.errors import SettingsError

Costs: TypeAlias = list[float]

MAX_WEIGHT = 1e9  # with more a cost is no number any more


class Sight(NamedTuple):
    """A request before the workers that may take it. Lists have one value for each."""

    num_tokens: int
    block_size: int
    num_before: int  # requests that this router sent before
    matched_blocks: list[int]  # leading blocks cached there
    queued_tokens: list[int]  # uncached, sent there without a first token yet
    num_requests: list[int]  # sent there and not ended
    prompt_blocks: list[int]  # of those requests
    shared_blocks: list[int]  # leading blocks in use there; only for formulas that ask for them
    used_share: list[float]  # of the worker's blocks

    @property
    def num_blocks(self) -> int:
        return -(-self.num_tokens // self.block_size)

    def uncached_tokens(self, i: int) -> int:
        return max(0, self.num_tokens - self.matched_blocks[i] * self.block_size)

    def uncached(self) -> list[int]:
        return [self.uncached_tokens(i) for i in range(len(self.matched_blocks))]


def round_robin(sight: Sight) -> Costs:
    num = len(sight.num_requests)
    return [float((i - sight.num_before) % num) for i in range(num)]


def least_requests(sight: Sight) -> Costs:
    return [float(num) for num in sight.num_requests]


def dynamo(sight: Sight, credit: float, scale: float, active_weight: float) -> Costs:
    size, costs = sight.block_size, []
    for i, matched in enumerate(sight.matched_blocks):
        reused = min(matched * size, sight.num_tokens)
        prefill = (sight.queued_tokens[i] + sight.uncached_tokens(i) + reused) / size
        decode = sight.prompt_blocks[i] + sight.num_blocks - sight.shared_blocks[i]
        costs.append(
            scale * max(0.0, prefill - credit * matched)
            + decode
            + active_weight * sight.num_requests[i]
        )
    return costs


def llmd(sight: Sight, prefix: float, queue: float, utilisation: float) -> Costs:
    most, least = max(sight.queued_tokens), min(sight.queued_tokens)
    return [
        -prefix * matched / sight.num_blocks
        - queue * ((most - queued) / (most - least) if most > least else 1.0)
        - utilisation * (1.0 - used)
        for matched, queued, used in zip(
            sight.matched_blocks, sight.queued_tokens, sight.used_share, strict=True
        )
    ]


def sglang(sight: Sight, gate: float, ratio: float, threshold: float) -> Costs:
    most, least = max(sight.num_requests), min(sight.num_requests)
    is_uneven = most - least > gate and most > ratio * least
    if is_uneven or max(sight.matched_blocks) <= threshold * sight.num_blocks:
        return least_requests(sight)
    return [
        num - 1e4 * matched
        for num, matched in zip(sight.num_requests, sight.matched_blocks, strict=True)
    ]


def trtllm(sight: Sight, load_weight: float) -> Costs:
    return [
        load_weight * num - matched
        for num, matched in zip(sight.num_requests, sight.matched_blocks, strict=True)
    ]


def trtllm_old(sight: Sight, batch_size: float) -> Costs:
    batch_size = max(1.0, batch_size)
    return [
        num / batch_size - matched / max(1, sight.num_blocks)
        for num, matched in zip(sight.num_requests, sight.matched_blocks, strict=True)
    ]


def least_queued(sight: Sight) -> Costs:
    return [float(tokens) for tokens in sight.queued_tokens]


def mooncake(sight: Sight, queue_weight: float) -> Costs:
    return [
        queue_weight * queued + uncached
        for queued, uncached in zip(sight.queued_tokens, sight.uncached(), strict=True)
    ]


def lmetric(sight: Sight) -> Costs:
    return [
        (uncached + 1.0) * (num + 1.0)
        for uncached, num in zip(sight.uncached(), sight.num_requests, strict=True)
    ]


class Formula(NamedTuple):
    """Smallest cost wins, ties at random. `weights` are the peer's own unless others are given."""

    cost: Callable[..., Costs]
    weights: tuple[float, ...] = ()
    needs_shared: bool = False

    def __call__(self, sight: Sight) -> Costs:
        return self.cost(sight, *self.weights)


PEERS: dict[str, Formula] = {
    "dynamo": Formula(dynamo, (1.0, 1.0, 0.0), needs_shared=True),
    "dynamo_tuned": Formula(dynamo, (2.0, 32.0, 32.0), needs_shared=True),
    "llmd": Formula(llmd, (3.0, 2.0, 2.0)),
    "sglang": Formula(sglang, (64.0, 1.5, 0.3)),
    "trtllm": Formula(trtllm, (0.25,)),
    "mooncake": Formula(mooncake, (0.5,)),
    "trtllm_old": Formula(trtllm_old, (64.0,)),
    "lmetric": Formula(lmetric),
    "least_queued": Formula(least_queued),
    "least_requests": Formula(least_requests),
    "round_robin": Formula(round_robin),
}


def formula_of(name: str) -> Formula:
    """`dynamo`, or with weights of one's own `dynamo:1/8/32`. Raises SettingsError."""
    peer, has_weights, text = name.partition(":")
    formula = PEERS.get(peer)
    if formula is None:
        raise SettingsError(f"router {name!r} is neither cachelane nor one of: {', '.join(PEERS)}")
    if not has_weights:
        return formula
    try:
        weights = tuple(float(part) for part in text.split("/"))
    except ValueError:
        weights = ()
    if len(weights) != len(formula.weights) or not all(abs(w) <= MAX_WEIGHT for w in weights):
        raise SettingsError(f"router {name!r}: {_usage(peer, formula)}")
    return formula._replace(weights=weights)


def _usage(peer: str, formula: Formula) -> str:
    if not formula.weights:
        return f"{peer} takes no weights"
    own = "/".join(f"{weight:g}" for weight in formula.weights)
    return f"{peer} takes {len(formula.weights)} numbers, its own are {peer}:{own}"
