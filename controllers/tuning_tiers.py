"""Static tiers made of what learned retention knows, for a price of a block.

Priority is the worth of a class when it has just been used, duration how long it is worth the
price. The price depends on the cache: whoever asks for tiers tries several. Knows no replay.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from controllers.learned_retention import LearnedRetention
from controllers.promises import (
    DEFAULT_PROMISE,
    DEFAULT_RETENTION_PRIORITY,
    MAX_RETENTION_PRIORITY,
    Promise,
    duration_of,
)
from controllers.promising import NOTHING, WORTHLESS, level_of
from controllers.prompt_use import PromptUse
from controllers.retention_policy import RetentionPolicy, SpanRule, TypeRule, promise_of
from controllers.retention_replay import Prompt
from controllers.survival import Survival, last_age_s

_ALL = ""  # stands for every tenant


def fit(past: Sequence[Prompt], block_size: int) -> Survival:
    """What is to be learned of prompts, whatever their tenant."""
    learned = LearnedRetention()
    for prompt in past:
        hashes = prompt.full_hashes(block_size)
        use = PromptUse(hashes, prompt.spans.num_tokens, block_size, prompt.request_type, _ALL)
        learned.fit_if_due(prompt.at_s)
        learned.finished(learned.use(use, prompt.at_s), None, prompt.at_s)
    learned.survival.fit(past[-1].at_s if past else 0.0)
    return learned.survival


def tiers_of(
    survival: Survival, seen: set[str], present: RetentionPolicy, price: float
) -> RetentionPolicy:
    """`seen`: request types that `survival` knows. Others, system prompts and types of which
    nothing is kept stay as they are. `price`: hits per block-second."""
    rules = {
        name: _rule(survival, name, rule, present.shared, price)
        if name in seen and rule.current.retention_priority != 0
        else rule
        for name, rule in present.request_types.items()
    }
    return msgspec.structs.replace(present, policy="static", request_types=rules)


def _rule(
    survival: Survival, request_type: str, rule: TypeRule, shared: SpanRule, price: float
) -> TypeRule:
    """History is what was used before, the current turn what was not."""
    current = _promise(survival, price, request_type, _ALL, 1)
    history = _promise(survival, price, request_type, _ALL).join(current)
    system = rule.system
    if system.retention_priority is None and history.retention_priority > 35:
        system = shared  # or nothing behind it could be kept better than a new block
    ceiling = promise_of(system, MAX_RETENTION_PRIORITY) or DEFAULT_PROMISE
    history = history.meet(ceiling)
    current = current.meet(history)
    decode = promise_of(rule.decode, MAX_RETENTION_PRIORITY) or DEFAULT_PROMISE
    is_kept = decode.retention_priority >= DEFAULT_RETENTION_PRIORITY
    reply = current if is_kept else decode.meet(current)
    return TypeRule(
        system=system, history=_span(history), current=_span(current), decode=_span(reply)
    )


def _promise(survival: Survival, price: float, *path: str | int) -> Promise:
    class_id = survival.class_of(*path)
    worth = survival.index[class_id][0]
    if worth < WORTHLESS * price:
        return NOTHING
    if worth < price:
        return DEFAULT_PROMISE
    return Promise(level_of(worth), last_age_s(survival.reach[class_id], price))


def _span(promise: Promise) -> SpanRule:
    return SpanRule(promise.retention_priority, duration_of(Promise.of(*promise)))
