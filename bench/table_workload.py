"""The cache events of a fleet, generated: what the routing tables under test are fed.

Standard library only, so that it runs inside a peer's interpreter too.

Conversations start with one of a few shared system prompts, grow by turns on one worker, and now
and then are replayed on another worker. Every stored event has at most `blocks_per_event` blocks.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

SYSTEM_PROMPTS = 8
SYSTEM_BLOCKS = 64
PROBE_LENGTHS = (64, 512, 4096)


@dataclass
class Chain:
    """Blocks of one prompt: `local` names a block's own tokens, `prefix` everything up to it."""

    local: list[int] = field(default_factory=list)
    prefix: list[int] = field(default_factory=list)

    def grow(self, num_blocks: int, rng: random.Random) -> None:
        self.local += [rng.getrandbits(64) for _ in range(num_blocks)]
        self.prefix += [rng.getrandbits(64) for _ in range(num_blocks)]

    def copy(self, num_blocks: int | None = None) -> Chain:
        return Chain(self.local[:num_blocks], self.prefix[:num_blocks])


@dataclass
class Stored:
    """Consecutive new blocks of one worker."""

    worker: int
    parent: int | None
    local: list[int]
    prefix: list[int]


@dataclass
class Workload:
    """Events in order, and prompts to look up."""

    num_workers: int
    stored: list[Stored]
    num_blocks: int  # pairs of worker and block
    num_unique: int
    prompts: list[Chain]
    probe_stored: list[Stored]
    probes: dict[str, Chain]  # "512 half": a prompt whose first half is held


def generate(num_workers: int, num_blocks: int, blocks_per_event: int, seed: int) -> Workload:
    """The same arguments give the same workload in every process."""
    rng = random.Random(seed)
    systems = [Chain() for _ in range(SYSTEM_PROMPTS)]
    for system in systems:
        system.grow(SYSTEM_BLOCKS, rng)
    held: list[set[int]] = [set() for _ in range(num_workers)]
    stored: list[Stored] = []
    conversations: list[tuple[int, Chain]] = []
    while sum(map(len, held)) < num_blocks:
        if conversations and rng.random() < 0.6:
            worker, chain = rng.choice(conversations)
        else:
            worker, chain = rng.randrange(num_workers), rng.choice(systems).copy()
            conversations.append((worker, chain))
        chain.grow(rng.randrange(4, 64), rng)
        stored += _store(worker, chain, held[worker], blocks_per_event)
        if rng.random() < 0.15:
            other = rng.randrange(num_workers)
            stored += _store(other, chain, held[other], blocks_per_event)
    sample = rng.sample(conversations, min(400, len(conversations)))
    probe_stored, probes = _probes(num_workers, blocks_per_event, rng)
    return Workload(
        num_workers=num_workers,
        stored=stored,
        num_blocks=sum(map(len, held)),
        num_unique=len(set().union(*held)),
        prompts=[chain for _, chain in sample],
        probe_stored=probe_stored,
        probes=probes,
    )


def _store(worker: int, chain: Chain, held: set[int], blocks_per_event: int) -> list[Stored]:
    """Events for the blocks of the chain that the worker lacks."""
    start = next((i for i, h in enumerate(chain.prefix) if h not in held), len(chain.prefix))
    events = []
    for i in range(start, len(chain.prefix), blocks_per_event):
        parent = chain.prefix[i - 1] if i else None
        part = slice(i, i + blocks_per_event)
        events.append(Stored(worker, parent, chain.local[part], chain.prefix[part]))
    held.update(chain.prefix)
    return events


def _probes(
    num_workers: int, blocks_per_event: int, rng: random.Random
) -> tuple[list[Stored], dict[str, Chain]]:
    """Long prompts held by every second worker, and variants of which half or nothing is held."""
    stored: list[Stored] = []
    probes: dict[str, Chain] = {}
    for length in PROBE_LENGTHS:
        full = Chain()
        full.grow(length, rng)
        for worker in range(0, num_workers, 2):
            stored += _store(worker, full, set(), blocks_per_event)
        half, none = full.copy(length // 2), Chain()
        half.grow(length - length // 2, rng)
        none.grow(length, rng)
        probes |= {f"{length} full": full, f"{length} half": half, f"{length} none": none}
    return stored, probes
