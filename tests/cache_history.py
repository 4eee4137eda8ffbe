"""Random use of a cache, with everything that must hold after each move."""

from __future__ import annotations

import random
from collections import Counter

from controllers.events import WorkerUp
from controllers.mirror import Mirror
from serve_app.engine.block import MEDIUM_OF_LEVEL, Block
from serve_app.engine.sequence import Sequence
from tests.cache_fixture import Cache, Pool, ids_of

UP = WorkerUp(num_blocks={}, executor="", version="", salt_id="", max_seq_len=1)


class Reader:
    """Knows one window's cache from its events alone."""

    def __init__(self, pool: Pool) -> None:
        self._manager = pool.manager
        self._events = pool.events
        self._mirror = Mirror()

    def check(self) -> None:
        self._events.flush()
        for event in self._events.drain(0):
            self._mirror.apply(event)
        assert self._told() == {
            _hex(block): (
                _hex(block.parent),
                MEDIUM_OF_LEVEL[block.level],
                block.retention_priority,
            )
            for block in self._manager.reusable_blocks()
        }

    def _told(self) -> dict[str, tuple[str, str, int]]:
        """Parent, medium and retention priority by hash, as a reader of the events knows them."""
        [part] = self._mirror.snapshot(UP, 0, max_blocks=1000)
        blocks = part.blocks
        columns = zip(blocks.parents, blocks.mediums, blocks.retention_priority, strict=True)
        return dict(zip(blocks.hashes, columns, strict=True))


class History:
    """Random prompts that share prefixes, with random retention, ended in random order."""

    def __init__(self, seed: int, cache: Cache) -> None:
        self.random = random.Random(seed)
        self.cache = cache
        self.live: list[Sequence] = []
        self.pinned: list[list[int]] = []
        self.num_refused = 0
        self._readers = [Reader(pool) for pool in cache.pools]

    def play(self, num_moves: int) -> None:
        moves = [self.add] * 4 + [self.grow] * 4 + [self.store, self.end] * 2
        moves += [self.pin, self.unpin]
        for _ in range(num_moves):
            self.cache.expire(self.cache.now + self.random.random())
            self.random.choice(moves)()
            self.check()
        while self.pinned:
            self.unpin()
        while self.live:
            self.end()
        self.check()

    def add(self) -> None:
        prefix = [0] * self.random.randrange(10)
        own = [self.random.randrange(2) for _ in range(self.random.randrange(1, 9))]
        duration_s = self.random.choice([None, 1.0, 3.0])
        ranges = [(0, None, self.random.choice([0, 35, 60, 100]), duration_s)]
        num_extra = self.random.randrange(len(prefix + own) + 1)
        extra_ids = [self.random.randrange(2) for _ in range(num_extra)]
        seq = self.cache.try_add(
            prefix + own,
            ranges=ranges if self.random.random() < 0.7 else (),
            decode=(self.random.choice([10, 35, 80]), duration_s),
            salt=self.random.randrange(2),
            extra_ids=extra_ids if self.random.random() < 0.2 else (),
        )
        if seq is None:
            self.num_refused += 1
        else:
            self.live.append(seq)

    def grow(self) -> None:
        if self.live and all(pool.manager.num_free_blocks for pool in self.cache.pools):
            self.cache.generate(self.random.choice(self.live), self.random.randrange(2))

    def store(self) -> None:
        if self.live:
            self.cache.store_context(self.random.choice(self.live))

    def end(self) -> None:
        if self.live:
            seq = self.live.pop(self.random.randrange(len(self.live)))
            self.cache.remove(seq)

    def pin(self) -> None:
        if self.live and len(self.pinned) < 2:
            self.pinned.append(self.cache.manager.pin(self.random.choice(self.live)))

    def unpin(self) -> None:
        if self.pinned:
            block_ids = self.pinned.pop(self.random.randrange(len(self.pinned)))
            self.cache.manager.unpin(block_ids, self.cache.now)

    def check(self) -> None:
        for reader in self._readers:
            reader.check()
        for seq in self.live:
            self.cache.check_kv(seq, len(seq.tokens))
        self._check_users()

    def _check_users(self) -> None:
        """Every block has as many users as it should; those in use share no slot."""
        pinned = Counter(block_id for block_ids in self.pinned for block_id in block_ids)
        for at, pool in enumerate(self.cache.pools):
            views = [self.cache.parts(seq)[at][1] for seq in self.live]
            held = [block for view in views for block in view.blocks[view.num_detached :]]
            users = Counter(ids_of(held))
            if at == 0:
                users += pinned
            assert pool.manager.used_blocks["gpu"] == len(users)
            assert {block.block_id: block.ref_count for block in held}.items() <= users.items()
            slots = {(block.level, block.slot) for block in held}
            assert len(slots) == len(set(ids_of(held)))


def _hex(block: Block | None) -> str:
    return "" if block is None or block.block_hash is None else f"{block.block_hash:016x}"
