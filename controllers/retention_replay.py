"""Requests through one worker's cache under a retention policy: what would have been hit.

The cache is that of the simulator, with the engine's rules; requests take no time, one comes when
the one before has been released. Owns the policies' common shape. Knows no file and no trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from controllers.events import Removed, ints_of
from controllers.learned_retention import LearnedRetention, Use
from controllers.prompt_use import PromptUse
from controllers.retention import Retention, RetentionPolicy, Spans, plan, ranges_of_blocks, rule_of
from controllers.simulation.cache import AS_IS, Ask, Cache, Kept
from controllers.simulation.cache_store import CacheShape

_WORKER = "replay"


class Prompt(NamedTuple):
    """One request. `hashes`: of its blocks; a partial last one may have one too."""

    at_s: float
    request_type: str
    tenant: str
    hashes: Sequence[int]
    spans: Spans

    def full_hashes(self, block_size: int) -> Sequence[int]:
        return self.hashes[: self.spans.num_tokens // block_size]


class Policy(Protocol):
    """What to keep, and what came of it."""

    def retention(self, prompt: Prompt) -> Retention: ...
    def done(self, prompt: Prompt, num_hits: int, removed: Sequence[int]) -> None: ...


class Lru:
    """Nothing is said of what to keep."""

    def retention(self, prompt: Prompt) -> Retention:
        return Retention()

    def done(self, prompt: Prompt, num_hits: int, removed: Sequence[int]) -> None: ...


class StaticTiers(Lru):
    """The tiers of the settings."""

    def __init__(self, policy: RetentionPolicy, block_size: int) -> None:
        self._policy = policy
        self._block_size = block_size

    def retention(self, prompt: Prompt) -> Retention:
        return plan(self._policy, prompt.request_type, prompt.spans, self._block_size)


class Learned:
    """What production learns and says, in one process for one worker."""

    def __init__(self, policy: RetentionPolicy, block_size: int, num_blocks: int) -> None:
        self.learned = LearnedRetention()
        self.learned.set_workers({_WORKER: num_blocks})
        self._policy = policy
        self._block_size = block_size
        self._use: Use | None = None

    def watch(self, prompts: Iterable[Prompt]) -> None:
        """Learn from requests that went elsewhere."""
        for prompt in prompts:
            self.learned.fit_if_due(prompt.at_s)
            use = self.learned.use(self._prompt_use(prompt), prompt.at_s)
            self.learned.finished(use, None, prompt.at_s)

    def retention(self, prompt: Prompt) -> Retention:
        self.learned.fit_if_due(prompt.at_s)
        self._use = self.learned.use(self._prompt_use(prompt), prompt.at_s)
        return self.learned.promise(self._use, _WORKER, prompt.at_s)

    def done(self, prompt: Prompt, num_hits: int, removed: Sequence[int]) -> None:
        assert self._use is not None
        self.learned.finished(self._use, num_hits, prompt.at_s)
        self.learned.removed(_WORKER, removed, prompt.at_s)

    def _prompt_use(self, prompt: Prompt) -> PromptUse:
        return prompt_use_of(prompt, self._policy, self._block_size)


class Hits(NamedTuple):
    """Blocks by request type: asked for, and found cached."""

    asked: Counter[str]
    hit: Counter[str]

    @property
    def rate(self) -> float:
        """Of all types together, 0-1."""
        return sum(self.hit.values()) / max(1, sum(self.asked.values()))

    def rate_of(self, request_type: str) -> float:
        return self.hit[request_type] / max(1, self.asked[request_type])


def replay(prompts: Iterable[Prompt], policy: Policy, num_blocks: int, block_size: int) -> Hits:
    """From an empty cache. A prompt that the cache cannot hold is cut to its size."""
    cache = Cache(CacheShape(num_blocks, tokens_of_node=block_size))
    hits = Hits(Counter(), Counter())
    for prompt in prompts:
        kept = kept_of(policy.retention(prompt), prompt, block_size)
        keys = prompt.hashes[:num_blocks]
        held = cache.admit(Ask(keys, [1] * len(keys), 0, kept), prompt.at_s)
        cache.release(held, prompt.at_s)
        hits.asked[prompt.request_type] += len(prompt.hashes)
        hits.hit[prompt.request_type] += held.num_hit_blocks
        policy.done(prompt, held.num_hit_blocks, _removed(cache))
    return hits


def kept_of(retention: Retention, prompt: Prompt, block_size: int) -> list[Kept]:
    """By block, and for what is behind the last one."""
    ranges = ranges_of_blocks(retention, len(prompt.hashes) * block_size, block_size)
    kept: list[Kept] = [
        AS_IS if given is None else (given.retention_priority, given.duration_s) for given in ranges
    ]
    return [*kept, AS_IS]


def _removed(cache: Cache) -> list[int]:
    removed = [event for event in cache.drain() if isinstance(event, Removed)]
    return [block_hash for event in removed for block_hash in ints_of(event.hashes)]


def prompt_use_of(prompt: Prompt, policy: RetentionPolicy, block_size: int) -> PromptUse:
    """Replies are in no record, so none is kept."""
    return PromptUse(
        hashes=prompt.full_hashes(block_size),
        num_tokens=prompt.spans.num_tokens,
        block_size=block_size,
        request_type=prompt.request_type,
        tenant=prompt.tenant,
        is_kept=rule_of(policy, prompt.request_type).current.retention_priority != 0,
        keeps_reply=False,
    )
