"""A small queueing model of a fleet on a day's arrivals, driven by the real meter and policy.

Each replica computes prompts one after the other; requests go to the replica that is free first.
The clock runs in steps; new replicas take a while to start, removed ones finish what they have.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from controllers.autoscaling import Autoscaler, Observation
from controllers.autoscaling_report import ReplicaReport
from controllers.autoscaling_settings import AutoscalingSettings
from controllers.events import Iteration, Load
from controllers.replica_meter import ReplicaMeter, TierTarget

MS_PER_TOKEN = 0.1
FIXED_MS = 20.0
DECODE_MS = 20.0
MAX_BATCHED_TOKENS = 8192
OUTPUT_TOKENS = 50
TOTAL_BLOCKS = 10_000
BLOCKS_PER_REQUEST = 100
TARGET = TierTarget("standard", 1, ttft_slo_ms=3000.0, itl_slo_ms=400.0)


@dataclass
class Replica:
    meter: ReplicaMeter
    ready_at: float
    free_at: float = 0.0
    is_leaving: bool = False
    starts: list[tuple[float, str]] = field(default_factory=list)
    ends: list[tuple[float, str]] = field(default_factory=list)
    tokens: int = 0  # prefilled in this step
    num_prefills: int = 0

    def take(self, name: str, tokens: int, now: float) -> float:
        """Milliseconds to its first token."""
        self.meter.arrived(name, TARGET, tokens, now)
        service_s = (FIXED_MS + MS_PER_TOKEN * tokens) / 1e3
        self.free_at = max(self.free_at, now) + service_s
        heapq.heappush(self.starts, (self.free_at, name))
        heapq.heappush(self.ends, (self.free_at + OUTPUT_TOKENS * DECODE_MS / 1e3, name))
        self.tokens += tokens
        self.num_prefills += 1
        return (self.free_at - now) * 1e3

    def advance(self, now: float) -> None:
        while self.starts and self.starts[0][0] <= now:
            at, name = heapq.heappop(self.starts)
            self.meter.first_token(name, at)
        while self.ends and self.ends[0][0] <= now:
            at, name = heapq.heappop(self.ends)
            self.meter.ended(name, OUTPUT_TOKENS, at)
        self.meter.on_load(0, self._load(), now)
        self.tokens = self.num_prefills = 0

    def _load(self) -> Load:
        num_active = len(self.ends) - len(self.starts)
        used = min(TOTAL_BLOCKS, BLOCKS_PER_REQUEST * len(self.ends))
        iterations = [Iteration(0, num_active, used, DECODE_MS)] if num_active else []
        if self.num_prefills:
            tokens = self.tokens // self.num_prefills
            ms = FIXED_MS + MS_PER_TOKEN * tokens
            iterations.append(Iteration(tokens, 0, used, ms, self.num_prefills))
        return Load(
            num_active=num_active,
            num_queued=len(self.starts),
            queued_prefill_tokens=0,
            decode_tokens=0,
            used_blocks={"gpu": used},
            total_blocks={"gpu": TOTAL_BLOCKS},
            iterations=iterations,
        )

    def report(self, now: float) -> ReplicaReport:
        return ReplicaReport(
            **self.meter.figures(0, now), max_running=64, tiers=self.meter.tiers(now)
        )


@dataclass
class Day:
    """What came of it. `targets` are (time in s, target) of every change."""

    num_requests: int = 0
    num_missed: int = 0
    replica_s: float = 0.0
    targets: list[tuple[float, int]] = field(default_factory=list)

    @property
    def share_met(self) -> float:
        return 1.0 - self.num_missed / self.num_requests

    def num_turns(self, within_s: float) -> int:
        """Changes that take back the one before within so many seconds."""
        steps = [
            (at, target - before)
            for (_, before), (at, target) in zip(self.targets, self.targets[1:], strict=False)
        ]
        return sum(
            a_step * b_step < 0 and b - a < within_s
            for (a, a_step), (b, b_step) in zip(steps, steps[1:], strict=False)
        )


def run_day(
    rate: Callable[[float], float],
    seconds: float,
    settings: AutoscalingSettings,
    *,
    start_s: float,
    num_first: int = 1,
    step_s: float = 2.0,
    seed: int = 1,
) -> Day:
    """`rate(t)` requests a second; a new replica takes `start_s` to start."""
    rng = random.Random(seed)
    policy, day = Autoscaler(), Day()
    fleet = [_replica(settings, 0.0) for _ in range(num_first)]
    target, now = num_first, 0.0
    day.targets.append((now, target))
    while now < seconds:
        now += step_s
        fleet = _settle(fleet, target, settings, now, start_s)
        up = [r for r in fleet if not r.is_leaving and r.ready_at <= now]
        for i in range(_poisson(rng, rate(now) * step_s)):
            tokens = min(MAX_BATCHED_TOKENS, int(rng.lognormvariate(8.0, 0.5)))
            first_ms = min(up, key=lambda r: r.free_at).take(f"{now}-{i}", tokens, now)
            day.num_requests += 1
            day.num_missed += first_ms > TARGET.ttft_slo_ms
        for replica in fleet:
            replica.advance(now)
        day.replica_s += step_s * len(fleet)
        seen = Observation(
            target=target,
            num_running=len(up),
            reports={f"r{number}": one.report(now) for number, one in enumerate(up)},
            num_in_routers=0,
            min_replicas=settings.min_replicas,
            max_replicas=settings.max_replicas,
        )
        verdict = policy.decide(seen, settings, now)
        if verdict.target != target:
            target = verdict.target
            day.targets.append((now, target))
    return day


def mean_service_s() -> float:
    """Of one prompt."""
    rng = random.Random(7)
    tokens = [min(MAX_BATCHED_TOKENS, int(rng.lognormvariate(8.0, 0.5))) for _ in range(20_000)]
    return (FIXED_MS + MS_PER_TOKEN * sum(tokens) / len(tokens)) / 1e3


def _replica(settings: AutoscalingSettings, ready_at: float) -> Replica:
    meter = ReplicaMeter(MAX_BATCHED_TOKENS, 1, ready_at)
    meter.configure(settings)
    return Replica(meter, ready_at)


def _settle(
    fleet: list[Replica], target: int, settings: AutoscalingSettings, now: float, start_s: float
) -> list[Replica]:
    staying = [replica for replica in fleet if not replica.is_leaving]
    for replica in staying[target:]:
        replica.is_leaving = True
    fleet = [r for r in fleet if not r.is_leaving or r.ends]
    return fleet + [_replica(settings, now + start_s) for _ in range(target - len(staying))]


def _poisson(rng: random.Random, mean: float) -> int:
    """Knuth's way; means are small."""
    limit, product, count = math.exp(-mean), rng.random(), 0
    while product > limit:
        product *= rng.random()
        count += 1
    return count
