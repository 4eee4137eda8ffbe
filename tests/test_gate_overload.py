"""A worker under three times its load, in pretended time: what the gate's order is worth.

The engine takes as long as a scripted one: an iteration computes prompts beside a token of each
running request. Like a real engine it has begun its next iteration before the gate hears of a first
token. `bench/overload.py` measures the same with processes and a network between.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from controllers.errors import WorkerFull
from controllers.fair_queue import Bounds
from controllers.gate import Gate, GateRules
from controllers.waiting import Waiting

PROMPT_TOKENS = 300
PREFILL_S = 0.12
DECODE_S = 0.03
CHAT, BATCH = 0, 2
OUTPUT_TOKENS = {CHAT: 8, BATCH: 32}
CAPACITY_PER_S = 4.5  # of the worker, when three in ten are chats
SECONDS = 200.0


@dataclass(frozen=True)
class Stream:
    """Requests that arrive at random."""

    name: str
    rank: int
    per_s: float
    weight: float = 1.0

    def arrivals(self, seed: int) -> list[Waiting]:
        rng, at, found = random.Random(f"{seed}{self.name}"), 0.0, []
        while (at := at + rng.expovariate(self.per_s)) < SECONDS:
            name = f"{self.name}{at}"
            found.append(Waiting(name, PROMPT_TOKENS, at, self.rank, self.name, self.weight))
        return found


@dataclass
class Worker:
    """A gate and its engine. `run` returns when the last arrival has been served or refused."""

    gate: Gate
    ttft_s: dict[int, list[float]] = field(default_factory=lambda: {CHAT: [], BATCH: []})
    served: Counter[str] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)
    _running: dict[str, tuple[Waiting, int]] = field(default_factory=dict)

    def run(self, streams: Sequence[Stream], seed: int = 0) -> Worker:
        arrivals = [item for stream in streams for item in stream.arrivals(seed)]
        arrivals.sort(key=lambda item: item.submitted_s, reverse=True)
        now, ready, heard = 0.0, list[Waiting](), list[Waiting]()
        while arrivals or self._running or ready or heard:
            step = ready or ([] if self._running else heard)
            ready = [] if step is heard else heard
            if not step and not self._running:
                now = max(now, arrivals[-1].submitted_s)
            else:
                now += PREFILL_S * len(step) or DECODE_S
            while arrivals and arrivals[-1].submitted_s <= now:
                ready += self._arrive(arrivals.pop())
            heard = self._end_step(step, now)
        return self

    def _arrive(self, item: Waiting) -> list[Waiting]:
        try:
            self.refused.update(victim.rank for victim in self.gate.submit(item))
        except WorkerFull:
            self.refused[item.rank] += 1
        return self.gate.start(item.submitted_s)

    def _end_step(self, step: list[Waiting], now: float) -> list[Waiting]:
        for request_id, (item, left) in [*self._running.items()]:
            self._running[request_id] = item, left - 1
            if left == 1:
                del self._running[request_id]
                self.gate.leave(request_id, now)
                self.served[item.tenant] += now < SECONDS
        for item in step:
            self.ttft_s[item.rank].append(now - item.submitted_s)
            self._running[item.request_id] = item, OUTPUT_TOKENS[item.rank] - 1
            self.gate.prefill_ended(item.request_id)
        return self.gate.start(now)


def worker(max_kept_share: float = 0.5) -> Worker:
    return Worker(Gate(GateRules(Bounds(20), 96, 8, 512, max_kept_share)))


CHATS = Stream("chat", CHAT, 0.3 * CAPACITY_PER_S)
FLOOD = [
    Stream("heavy", BATCH, 1.35 * CAPACITY_PER_S, weight=3.0),
    Stream("light", BATCH, 1.35 * CAPACITY_PER_S),
]


def p99(done: Worker) -> float:
    values = done.ttft_s[CHAT]
    return sorted(values)[len(values) * 99 // 100]


@pytest.fixture(scope="module")
def alone() -> Worker:
    return worker().run([CHATS])


@pytest.fixture(scope="module")
def flooded() -> Worker:
    return worker().run([CHATS, *FLOOD])


@pytest.fixture(scope="module")
def flooded_without_kept_places() -> Worker:
    return worker(max_kept_share=0.0).run([CHATS, *FLOOD])


def test_a_flood_leaves_chats_their_time(alone: Worker, flooded: Worker) -> None:
    assert p99(flooded) <= 2.0 * p99(alone)
    assert len(flooded.ttft_s[CHAT]) == len(alone.ttft_s[CHAT])
    assert flooded.refused[CHAT] == 0


def test_two_thirds_of_the_flood_are_refused(flooded: Worker) -> None:
    assert flooded.refused[BATCH] > 0.6 * 2.7 * CAPACITY_PER_S * SECONDS


def test_its_tenants_have_the_shares_of_their_weights(flooded: Worker) -> None:
    served = flooded.served
    assert served["heavy"] / served["light"] == pytest.approx(3.0, rel=0.1)


def test_kept_places_are_worth_more_than_they_cost(
    flooded: Worker, flooded_without_kept_places: Worker
) -> None:
    """Without them chats wait for batch requests to end."""
    assert p99(flooded_without_kept_places) > 1.4 * p99(flooded)
    served, most = (sum(w.served.values()) for w in (flooded, flooded_without_kept_places))
    assert served > 0.8 * most
