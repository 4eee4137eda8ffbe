"""What should be kept, and what it would bring, from prompts that were asked for.

Fits the statistics of learned retention to the first half, makes tiers of them, and replays the
second half under each policy. A proposal is judged only by what it was not made from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from controllers.learned_retention import LearnedRetention
from controllers.promises import DEFAULT_PROMISE, MAX_RETENTION_PRIORITY, Promise, duration_of
from controllers.promising import level_of
from controllers.prompt_use import PromptUse
from controllers.retention_policy import RetentionPolicy, SpanRule, TypeRule, promise_of
from controllers.retention_replay import Hits, Learned, Lru, Policy, Prompt, StaticTiers, replay
from controllers.retention_worker import FIRST_PRICE
from controllers.survival import last_age_s

FLOOR = 0.9  # of the hits of LRU, for every request type
MIN_GAIN = 0.002  # of the prompts' blocks; a smaller difference is no reason to change anything
PRESENT, TIERS, LEARNED, LRU = "present", "proposed tiers", "learned", "lru"
_ALL = ""  # stands for every tenant


class Judged(NamedTuple):
    """A policy and its hits on the second half. `policy` None: nothing is kept on purpose."""

    name: str
    policy: RetentionPolicy | None
    hits: Hits
    least_of_lru: float  # of the request type that fares worst

    @property
    def keeps_floors(self) -> bool:
        return self.least_of_lru >= FLOOR


class Proposal(NamedTuple):
    """`best`: of those that keep the floors; the present one unless another is clearly better."""

    judged: list[Judged]
    best: Judged
    num_fitted: int
    num_judged: int


def propose(
    prompts: Mapping[str, Sequence[Prompt]],
    num_blocks_of: Mapping[str, int],
    block_size: int,
    present: RetentionPolicy,
) -> Proposal:
    """`prompts` and `num_blocks_of` by worker."""
    halves = {w: (list(p[: len(p) // 2]), list(p[len(p) // 2 :])) for w, p in prompts.items()}
    past = sorted((p for first, _ in halves.values() for p in first), key=lambda p: p.at_s)
    tiers = tiers_of(past, block_size, present)
    policies = {
        PRESENT: present,
        TIERS: tiers,
        LEARNED: msgspec.structs.replace(present, policy="learned"),
    }

    def judge(policy: RetentionPolicy | None) -> Hits:
        hits = Hits(Counter(), Counter())
        for worker, (_, second) in halves.items():
            num_blocks = num_blocks_of[worker]
            made = _made(policy, past, block_size, num_blocks)
            part = replay(second, made, num_blocks, block_size)
            hits.asked.update(part.asked)
            hits.hit.update(part.hit)
        return hits

    lru = judge(None)
    judged = [Judged(LRU, None, lru, 1.0)]
    for name, policy in policies.items():
        hits = judge(policy)
        judged.append(Judged(name, policy, hits, _least(hits, lru)))
    return Proposal(judged, _best(judged), len(past), sum(len(b) for _, b in halves.values()))


def tiers_of(past: Sequence[Prompt], block_size: int, present: RetentionPolicy) -> RetentionPolicy:
    """Static tiers that come nearest to what was learned. Types that were not seen, system prompts
    and types of which nothing is kept stay as they are."""
    learned = LearnedRetention()
    for prompt in past:
        hashes = prompt.full_hashes(block_size)
        use = PromptUse(hashes, prompt.spans.num_tokens, block_size, prompt.request_type, _ALL)
        learned.fit_if_due(prompt.at_s)
        learned.finished(learned.use(use, prompt.at_s), None, prompt.at_s)
    learned.survival.fit(past[-1].at_s if past else 0.0)
    seen = {prompt.request_type for prompt in past}
    rules = {
        name: _rule(learned, name, rule)
        if name in seen and rule.current.retention_priority != 0
        else rule
        for name, rule in present.request_types.items()
    }
    return msgspec.structs.replace(present, policy="static", request_types=rules)


def _rule(learned: LearnedRetention, request_type: str, rule: TypeRule) -> TypeRule:
    """History is what was used before, the current turn what was not."""
    system = promise_of(rule.system, MAX_RETENTION_PRIORITY) or Promise(100, float("inf"))
    current = _promise(learned, request_type, _ALL, 1)
    history = _promise(learned, request_type, _ALL).join(current).meet(system)
    current = current.meet(history)
    decode = promise_of(rule.decode, MAX_RETENTION_PRIORITY) or DEFAULT_PROMISE
    reply = current if decode.retention_priority >= current.retention_priority else decode
    if rule.system.retention_priority is None:  # left alone, which counts as 35
        history, current, reply = (p.meet(DEFAULT_PROMISE) for p in (history, current, reply))
    return TypeRule(
        system=rule.system, history=_span(history), current=_span(current), decode=_span(reply)
    )


def _promise(learned: LearnedRetention, *path: str | int) -> Promise:
    survival = learned.survival
    class_id = survival.class_of(*path)
    worth = survival.index[class_id][0]
    return Promise(level_of(worth), last_age_s(survival.reach[class_id], min(FIRST_PRICE, worth)))


def _span(promise: Promise) -> SpanRule:
    return SpanRule(promise.retention_priority, duration_of(Promise.of(*promise)))


def _made(
    policy: RetentionPolicy | None, past: Sequence[Prompt], block_size: int, num_blocks: int
) -> Policy:
    if policy is None:
        return Lru()
    if policy.policy == "static":
        return StaticTiers(policy, block_size)
    learned = Learned(policy, block_size, num_blocks)
    learned.watch(past)
    return learned


def _least(hits: Hits, lru: Hits) -> float:
    shares = [hits.hit[kind] / lru.hit[kind] for kind in lru.asked if lru.hit[kind]]
    return min(shares, default=1.0)


def _best(judged: Sequence[Judged]) -> Judged:
    present = next(each for each in judged if each.name == PRESENT)
    rate: Callable[[Judged], float] = lambda each: each.hits.rate  # noqa: E731
    others = [each for each in judged if each.policy is not None and each.keeps_floors]
    best = max(others, key=rate, default=present)
    return best if best.hits.rate >= present.hits.rate + MIN_GAIN else present
