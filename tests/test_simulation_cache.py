"""The simulated cache: its own rules, and event by event what the local engine's manager does."""

from __future__ import annotations

import array
import random
from typing import TypeAlias

import numpy as np
import pytest

from controllers.blocks import block_hashes
from controllers.events import Event, Removed, Stored, Updated, hex_of
from controllers.retention import Retention, TokenRange
from controllers.simulation.cache import AS_IS, Ask, Cache, Held, Kept
from controllers.simulation.cache_store import CacheShape
from serve_app.engine.block_manager import BlockManager
from serve_app.engine.sequence import Sequence
from serve_app.engine.tiers import NoStorage
from serve_app.executors.base import GenerateRequest, SamplingParams

Fact: TypeAlias = tuple[object, ...]  # the block's hash, then what happened

BLOCK = 4
NUM_GPU, NUM_HOST = 24, 10


class Told:
    """An EventSink of the engine's that writes down what it is told, block by block."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []

    def stored(self, event: Stored) -> None:
        self.facts += stored_facts(event)

    def removed(self, block_hash: int) -> None:
        self.facts.append((hex_of(block_hash), "removed"))

    def moved(self, block_hash: int, old_medium: str, medium: str) -> None:
        self.facts.append((hex_of(block_hash), old_medium, medium))

    def reprioritised(self, block_hash: int, old: int, new: int) -> None:
        self.facts.append((hex_of(block_hash), old, new))


def stored_facts(event: Stored) -> list[Fact]:
    parents = [event.parent, *event.hashes[:-1]]
    columns = (event.hashes, parents, event.retention_priority)
    return [(own, "stored", *rest) for own, *rest in zip(*columns, strict=True)]


def facts_of(events: list[Event]) -> list[Fact]:
    told: list[Fact] = []
    for event in events:
        if isinstance(event, Stored):
            told += stored_facts(event)
        elif isinstance(event, Removed):
            told += [(own, "removed") for own in event.hashes]
        elif isinstance(event, Updated):
            is_move = event.medium is not None
            old = event.old_medium if is_move else event.old_retention_priority
            new = event.medium if is_move else event.retention_priority
            told += [(own, old, new) for own in event.hashes]
    return told


class Twins:
    """The same random history on both."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.told = Told()
        self.engine = BlockManager(
            block_size=BLOCK,
            num_gpu_blocks=NUM_GPU,
            num_host_blocks=NUM_HOST,
            storage=NoStorage(),
            events=self.told,
        )
        self.cache = Cache(CacheShape(NUM_GPU, NUM_HOST, tokens_of_node=BLOCK))
        self.live: list[tuple[Sequence, Held]] = []
        self.num_requests = 0
        self.num_hits = 0
        self.known: set[str] = set()

    def play(self, num_moves: int) -> None:
        for _ in range(num_moves):
            self.now += self.random.choice([0.0, 0.5, 3.0])
            if self.live and self.random.random() < 0.45:
                self.end(self.live.pop(self.random.randrange(len(self.live))))
            else:
                self.begin()
            self.compare()

    def begin(self) -> None:
        self.num_requests += 1
        path = [self.random.randrange(3)]
        while self.random.random() < 0.75 and len(path) < 8:
            path.append(3 * path[-1] + self.random.randrange(2) + 1)
        tokens = [100 * number + i for number in path for i in range(BLOCK)]
        tokens += [10**7 + self.num_requests] * 2  # a partial block that is nobody else's
        keys = block_hashes(np.array(tokens, np.uint32), BLOCK)
        self.known |= {hex_of(key) for key in keys}
        kept = self.kept(len(keys) + 1)
        seq = sequence(tokens, kept)
        if not self.engine.can_allocate(seq):
            return
        self.engine.expire(self.now)
        assert self.engine.allocate(seq, self.now)
        num_cached = seq.num_cached
        self.engine.store_full(seq, len(tokens))
        held = self.cache.admit(Ask(keys, [1] * len(keys), 1, kept), self.now)
        assert held.num_hit_blocks * BLOCK == num_cached
        self.num_hits += held.num_hit_blocks
        self.live.append((seq, held))

    def kept(self, num_blocks: int) -> list[Kept]:
        if self.random.random() < 0.5:
            return [AS_IS] * num_blocks
        priorities = sorted(self.random.choice([0, 20, 35, 60, 90]) for _ in range(num_blocks))
        return [
            (priority, self.random.choice([None, 2.0, 8.0]) if priority > 35 else None)
            for priority in reversed(priorities)
        ]

    def end(self, pair: tuple[Sequence, Held]) -> None:
        seq, held = pair
        self.engine.expire(self.now)
        self.engine.free(seq, self.now, len(seq.tokens))
        self.cache.release(held, self.now)

    def compare(self) -> None:
        told, self.told.facts = self.told.facts, []
        expected = [fact for fact in told if fact[0] in self.known]
        assert facts_of(self.cache.drain()) == expected
        assert self.cache.num_used_blocks == self.engine.used_blocks["gpu"]
        assert self.cache.num_cached_blocks == self.engine.cached_blocks


def sequence(tokens: list[int], kept: list[Kept]) -> Sequence:
    """`kept` by block."""
    ranges = tuple(
        TokenRange(index * BLOCK, (index + 1) * BLOCK, priority, duration_s)
        for index, (priority, duration_s) in enumerate(kept)
        if priority is not None
    )
    request = GenerateRequest(
        request_id="r",
        token_ids=array.array("I", tokens).tobytes(),
        sampling=SamplingParams(max_tokens=1),
        retention=Retention(ranges),
    )
    return Sequence(request, BLOCK)


@pytest.mark.parametrize("seed", range(12))
def test_it_does_what_the_engines_block_manager_does(seed: int) -> None:
    twins = Twins(seed)
    twins.play(250)
    assert twins.num_hits > 100


def admit(cache: Cache, keys: list[int], now: float = 0.0, kept: Kept | None = None) -> Held:
    asked = None if kept is None else [kept] * (len(keys) + 1)
    return cache.admit(Ask(keys, [16] * len(keys), 2, asked), now)


def test_blocks_are_found_from_admission_on_and_counted() -> None:
    cache = Cache(CacheShape(1000))
    first = admit(cache, [1, 2, 3])
    second = admit(cache, [1, 2, 4])
    assert (first.num_hit_blocks, second.num_hit_blocks) == (0, 32)
    assert (cache.num_asked_blocks, cache.num_hit_blocks, cache.num_missed_blocks) == (96, 32, 64)
    assert cache.num_used_blocks == 4 * 16 + 2 * 2
    assert (cache.num_in_use([1, 2, 3, 9]), cache.num_in_use([9])) == (3, 0)


def test_a_prefix_outlives_what_follows_it() -> None:
    cache = Cache(CacheShape(70))
    cache.release(admit(cache, [1, 2, 3, 4]), 0.0)
    cache.drain()
    cache.release(admit(cache, [5, 6]), 1.0)
    removed = [event for event in cache.drain() if isinstance(event, Removed)]
    assert removed == [Removed(hashes=[hex_of(4), hex_of(3)])]
    assert admit(cache, [1, 2, 3, 4]).num_hit_blocks == 32


def test_what_is_kept_longer_goes_later_until_its_timer_ends() -> None:
    for now, num_hit in ((5.0, 16), (20.0, 0)):
        cache = Cache(CacheShape(36))
        cache.release(admit(cache, [1], 0.0, kept=(80, 10.0)), 0.0)
        cache.release(admit(cache, [2], 1.0), 1.0)
        cache.release(admit(cache, [3], now), now)
        cache.release(admit(cache, [4], now), now)
        assert admit(cache, [1], now).num_hit_blocks == num_hit


def test_contents_name_parents_before_children() -> None:
    cache = Cache(CacheShape(200))
    for keys in ([1, 2, 3], [1, 2, 4], [5, 6], [7, 8, 9, 10], [1, 2, 4, 11]):
        cache.release(admit(cache, keys), 0.0)
    rows = [(own, parent) for own, parent, _ in cache.contents()]
    seen = {""}
    for own, parent in rows:
        assert parent in seen
        seen.add(own)
    assert len(rows) == len(seen) - 1 == 11
