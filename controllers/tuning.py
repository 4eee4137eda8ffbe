"""What should be kept, and what it would bring, from prompts that were asked for.

Fits the statistics of learned retention to the first half in time, makes tiers of them, and replays
each half, from an empty cache, under each policy. A proposal counts only by what it was not made
from; what it brings on the first half must hold on the second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from controllers.retention_policy import RetentionPolicy
from controllers.retention_replay import Hits, Learned, Lru, Policy, Prompt, StaticTiers, replay
from controllers.retention_worker import FIRST_PRICE
from controllers.tuning_tiers import fit, tiers_of

FLOOR = 0.9  # of the hits of LRU, for every request type
MIN_GAIN = 0.002  # of the prompts' blocks; a smaller difference is no reason to change anything
PRESENT, TIERS, LEARNED, LRU = "present", "proposed tiers", "learned", "lru"
# What a block must be worth depends on how short the cache is.
PRICES = tuple(FIRST_PRICE * factor for factor in (1, 2, 4, 8))

Asked: TypeAlias = Mapping[str, Sequence[Prompt]]  # by worker


class Judged(NamedTuple):
    """A policy and its hits on both halves. `policy` None: nothing is kept on purpose.

    `gains` beside the present policy, first half and second, in shares of the prompts' blocks.
    """

    name: str
    policy: RetentionPolicy | None
    first: Hits
    hits: Hits  # on the second half
    least_of_lru: float  # of the request type that fares worst, second half
    gains: tuple[float, float]

    @property
    def holds(self) -> bool:
        """Better on what it was made from, and still so on what came later, at no type's cost."""
        return min(self.gains) >= MIN_GAIN and self.least_of_lru >= FLOOR


class Proposal(NamedTuple):
    """`best`: the best on the second half of those that hold; else the present one.

    `unknown_types`: request types that the present policy does not know; it is replayed as if it
    treated them as its default type. `is_full`: some worker's half has more blocks than its cache
    holds; else nothing is ever evicted, whatever the policy.
    """

    judged: list[Judged]
    best: Judged
    num_fitted: int
    num_judged: int
    unknown_types: list[str]
    is_full: bool

    @property
    def is_tie(self) -> bool:
        """Whether every policy, LRU too, has the same hits of every type on both halves."""
        lru, *others = self.judged
        return all((j.first, j.hits) == (lru.first, lru.hits) for j in others)


def propose(
    prompts: Asked, num_blocks_of: Mapping[str, int], block_size: int, present: RetentionPolicy
) -> Proposal:
    """`prompts` and `num_blocks_of` by worker."""
    unknown = {p.request_type for each in prompts.values() for p in each} - set(
        present.request_types
    )
    present = _with_types(present, unknown)
    first, second = _halves(prompts)
    past = sorted((p for each in first.values() for p in each), key=lambda p: p.at_s)
    judge = _Judge(num_blocks_of, block_size)
    policies: dict[str, RetentionPolicy | None] = {
        LRU: None,
        PRESENT: present,
        TIERS: _tiers(judge, first, past, present),
        LEARNED: msgspec.structs.replace(present, policy="learned"),
    }
    # What learns has seen nothing when the record begins, and the first half when it goes on.
    before = {name: judge.hits(first, policy) for name, policy in policies.items()}
    after = {name: judge.hits(second, policy, past) for name, policy in policies.items()}
    judged = [
        Judged(
            name=name,
            policy=policy,
            first=before[name],
            hits=after[name],
            least_of_lru=_least(after[name], after[LRU]),
            gains=(
                before[name].rate - before[PRESENT].rate,
                after[name].rate - after[PRESENT].rate,
            ),
        )
        for name, policy in policies.items()
    ]
    num_judged = sum(map(len, second.values()))
    is_full = any(_overflows(half, num_blocks_of) for half in (first, second))
    return Proposal(judged, _best(judged), len(past), num_judged, sorted(unknown), is_full)


class _Judge:
    """Replays each worker's prompts as they were routed."""

    def __init__(self, num_blocks_of: Mapping[str, int], block_size: int) -> None:
        self.block_size = block_size
        self._num_blocks_of = num_blocks_of

    def hits(
        self, asked: Asked, policy: RetentionPolicy | None, seen: Sequence[Prompt] = ()
    ) -> Hits:
        """From empty caches; `seen` has taught what learns."""
        hits = Hits(Counter(), Counter())
        for worker, prompts in asked.items():
            num_blocks = self._num_blocks_of[worker]
            made = self._made(policy, seen, num_blocks)
            part = replay(prompts, made, num_blocks, self.block_size)
            hits.asked.update(part.asked)
            hits.hit.update(part.hit)
        return hits

    def _made(
        self, policy: RetentionPolicy | None, seen: Sequence[Prompt], num_blocks: int
    ) -> Policy:
        if policy is None:
            return Lru()
        if policy.policy == "static":
            return StaticTiers(policy, self.block_size)
        learned = Learned(policy, self.block_size, num_blocks)
        learned.watch(seen)
        return learned


def _with_types(policy: RetentionPolicy, names: set[str]) -> RetentionPolicy:
    rule = policy.request_types[policy.default_request_type]
    types = {**policy.request_types, **dict.fromkeys(sorted(names), rule)}
    return msgspec.structs.replace(policy, request_types=types)


def _halves(prompts: Asked) -> tuple[Asked, Asked]:
    """One cut in time for all workers, or what is to come would be known of others."""
    in_time = sorted(
        ((p, worker) for worker, each in prompts.items() for p in each), key=lambda e: e[0].at_s
    )
    halves: tuple[dict[str, list[Prompt]], dict[str, list[Prompt]]] = ({}, {})
    for number, (prompt, worker) in enumerate(in_time):
        half = halves[number >= len(in_time) // 2]
        half.setdefault(worker, []).append(prompt)
    return halves


def _overflows(asked: Asked, num_blocks_of: Mapping[str, int]) -> bool:
    return any(
        len({block for prompt in prompts for block in prompt.hashes}) > num_blocks_of[worker]
        for worker, prompts in asked.items()
    )


def _tiers(
    judge: _Judge, first: Asked, past: Sequence[Prompt], present: RetentionPolicy
) -> RetentionPolicy:
    """For the price that is best on what they are made from; first come those that keep floors."""
    survival, seen = fit(past, judge.block_size), {prompt.request_type for prompt in past}
    lru = judge.hits(first, None)

    def score(tiers: RetentionPolicy) -> tuple[bool, float]:
        hits = judge.hits(first, tiers)
        return _least(hits, lru) >= FLOOR, hits.rate

    return max((tiers_of(survival, seen, present, price) for price in PRICES), key=score)


def _least(hits: Hits, lru: Hits) -> float:
    shares = [hits.hit[kind] / lru.hit[kind] for kind in lru.asked if lru.hit[kind]]
    return min(shares, default=1.0)


def _best(judged: Sequence[Judged]) -> Judged:
    present = next(each for each in judged if each.name == PRESENT)
    holding = [each for each in judged if each.policy is not None and each.holds]
    return max(holding, key=lambda each: each.hits.rate, default=present)
