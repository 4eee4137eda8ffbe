"""What a fleet's caches hold and the prompts that ask for it, as token ids; and times to figures.

NumPy only, so that it runs inside a peer's interpreter too. Knows no hashing: blocks have names
that are equal for equal prefixes, which serve as an engine's own block hashes.

Conversations start with one of a few system prompts and lie on one worker, every seventh on a
second one too. Every other prompt to place continues a conversation that two workers hold: its
first half is theirs, what comes after is new. The other prompts are new from their first block.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

BLOCK_SIZE = 32
LENGTHS = (64, 512, 4096)  # blocks
NUM_TOKEN_IDS = 150_000
SYSTEM_PROMPTS = 8
SYSTEM_BLOCKS = 64
CONTINUED = 4  # conversations that the prompts of one length continue
COPY_EVERY = 7
RUNNING_PER_WORKER = 3
RUNNING_BLOCKS = 64

Tokens = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Chain:
    """`names` has one name for each block of `tokens`."""

    tokens: Tokens
    names: list[int]


@dataclass(frozen=True)
class Stored:
    """Blocks `start` to `end` of the chain, which the worker did not have before."""

    worker: int
    chain: Chain
    start: int
    end: int

    @property
    def parent(self) -> int | None:
        return self.chain.names[self.start - 1] if self.start else None

    @property
    def names(self) -> list[int]:
        return self.chain.names[self.start : self.end]

    @property
    def tokens(self) -> Tokens:
        return self.chain.tokens[self.start * BLOCK_SIZE : self.end * BLOCK_SIZE]


@dataclass
class Workload:
    """`prompts` by length in blocks; even ones have an overlap of half their blocks. `running`:
    prompts of the requests that are already being served, before the timed ones."""

    num_workers: int
    running: list[Tokens]
    stored: list[Stored] = field(default_factory=list)
    prompts: dict[int, list[Tokens]] = field(default_factory=dict)

    @property
    def num_blocks(self) -> int:
        """Pairs of worker and block."""
        return sum(run.end - run.start for run in self.stored)


def add_arguments(parser: argparse.ArgumentParser, number: Callable[[str], int] = int) -> None:
    """What decides the workload and how often it is asked, but for --workers. `number`: the type of
    what must be above 0; the peer's Python has none of ours."""
    parser.add_argument("--blocks", type=number, default=200_000, help="(worker, block) pairs")
    parser.add_argument("--prompts", type=number, default=60, help="of each length")
    parser.add_argument("--per-event", type=number, default=13, help="blocks")
    parser.add_argument("--passes", type=number, default=5, help="over all prompts")
    parser.add_argument("--seed", type=int, default=7)


def workload_of(args: argparse.Namespace) -> Workload:
    return generate(args.workers, args.blocks, args.prompts, args.per_event, args.seed)


class Times:
    """Of decisions, by who made them, blocks of the prompt and whether some are cached."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = defaultdict(list)

    def add(self, way: str, length: int, index: int, seconds: float) -> None:
        self._seconds[f"{way} {length} {'half' if index % 2 == 0 else 'none'}"].append(seconds)
        self._seconds[f"{way} {length}"].append(seconds)

    def figures(self) -> dict[str, float]:
        """Microseconds: p50 and p99 of each kind, and p50 by overlap."""
        figures = {}
        for name, seconds in self._seconds.items():
            p50, p99 = np.quantile(seconds, (0.5, 0.99)) * 1e6
            figures[f"{name} p50"] = float(p50)
            if name[-1].isdigit():
                figures[f"{name} p99"] = float(p99)
        return figures


def generate(
    num_workers: int, num_blocks: int, prompts_per_length: int, blocks_per_event: int, seed: int
) -> Workload:
    """At least `num_blocks` pairs. Same arguments, same workload, in every process."""
    maker = _Maker(num_workers, blocks_per_event, seed)
    for length in LENGTHS:
        maker.ask(length, prompts_per_length)
    maker.fill(num_blocks)
    return maker.workload


class _Maker:
    def __init__(self, num_workers: int, blocks_per_event: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        num_running = RUNNING_PER_WORKER * num_workers
        running = [self._tokens(RUNNING_BLOCKS * BLOCK_SIZE) for _ in range(num_running)]
        self.workload = Workload(num_workers, running)
        self._per_event = blocks_per_event
        self._num_names = 0
        self._held: list[set[int]] = [set() for _ in range(num_workers)]
        self._systems = [self._chain(SYSTEM_BLOCKS) for _ in range(SYSTEM_PROMPTS)]

    def ask(self, length: int, num_prompts: int) -> None:
        """Store conversations of half the length; prompts continue one of them, or nothing."""
        continued = [self._chain(length // 2) for _ in range(CONTINUED)]
        for chain in continued:
            for worker in self._rng.choice(self.workload.num_workers, 2, replace=False).tolist():
                self._store(worker, chain)
        prompts = []
        for number in range(num_prompts):
            tokens = self._tokens(length * BLOCK_SIZE)
            if number % 2 == 0:
                known = continued[number // 2 % CONTINUED].tokens
                tokens[: len(known)] = known
            prompts.append(tokens)
        self.workload.prompts[length] = prompts

    def fill(self, num_blocks: int) -> None:
        """More conversations, until the workers hold so many blocks together."""
        number = 0
        while sum(map(len, self._held)) < num_blocks:
            system = self._systems[number % SYSTEM_PROMPTS]
            turns = self._chain(int(self._rng.integers(16, 256)))
            chain = Chain(np.concatenate([system.tokens, turns.tokens]), system.names + turns.names)
            first, second = self._rng.choice(self.workload.num_workers, 2, replace=False).tolist()
            self._store(first, chain)
            if number % COPY_EVERY == 0:
                self._store(second, chain)
            number += 1

    def _store(self, worker: int, chain: Chain) -> None:
        held, num_blocks = self._held[worker], len(chain.names)
        known = next((i for i, name in enumerate(chain.names) if name not in held), num_blocks)
        for start in range(known, num_blocks, self._per_event):
            end = min(start + self._per_event, num_blocks)
            self.workload.stored.append(Stored(worker, chain, start, end))
        held.update(chain.names)

    def _chain(self, num_blocks: int) -> Chain:
        first, self._num_names = self._num_names + 1, self._num_names + num_blocks
        names = list(range(first, first + num_blocks))
        return Chain(self._tokens(num_blocks * BLOCK_SIZE), names)

    def _tokens(self, num_tokens: int) -> Tokens:
        return self._rng.integers(0, NUM_TOKEN_IDS, num_tokens, dtype=np.uint32)
