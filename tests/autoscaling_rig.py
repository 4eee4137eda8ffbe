"""Reports and settings for tests of autoscaling; a test names the figures that it is about."""

from __future__ import annotations

from typing import Any

import msgspec

from controllers.autoscaling import Autoscaler, Observation, Verdict
from controllers.autoscaling_report import ReplicaReport, TierReport
from controllers.autoscaling_settings import AutoscalingSettings

SETTINGS = AutoscalingSettings(
    enabled=True,
    min_replicas=1,
    max_replicas=8,
    down_settle_s=60.0,
    down_cooldown_s=60.0,
    lookahead_s=0.0,
)


def tier(**changes: Any) -> TierReport:
    """Prompts of 100 ms, one a second: a tenth of a replica."""
    usual = TierReport(
        rank=0,
        ttft_slo_ms=2000.0,
        itl_slo_ms=100.0,
        requests_per_s=1.0,
        prefill_ms_per_s=100.0,
        service_ms=100.0,
        service_ms2=20_000.0,
    )
    return msgspec.structs.replace(usual, **changes)


def busy(share: float, **changes: Any) -> TierReport:
    """Work that keeps `share` of a replica busy."""
    return tier(requests_per_s=10 * share, prefill_ms_per_s=1000 * share, **changes)


def report(*, tiers: dict[str, TierReport] | None = None, **changes: Any) -> ReplicaReport:
    usual = ReplicaReport(
        uptime_s=1000.0,
        prefill_busy=0.0,
        num_active=0,
        num_waiting=0,
        max_running=64,
        used_blocks=0,
        total_blocks=1000,
        idle_decode_ms=10.0,
        decode_ms=10.0,
        tiers={"interactive": tier()} if tiers is None else tiers,
    )
    return msgspec.structs.replace(usual, **changes)


class Fleet:
    """An autoscaler whose replicas come and go at once; the clock is moved by hand."""

    def __init__(self, target: int, settings: AutoscalingSettings = SETTINGS) -> None:
        self.target = target
        self.settings = settings
        self.now = 1000.0
        self.policy = Autoscaler()

    def see(self, *reports: ReplicaReport, in_routers: float = 0.0, **changes: Any) -> Verdict:
        seen = Observation(
            target=self.target,
            num_running=len(reports),
            reports={f"r{number}": one for number, one in enumerate(reports)},
            num_in_routers=in_routers,
            min_replicas=self.settings.min_replicas,
            max_replicas=self.settings.max_replicas,
        )
        verdict = self.policy.decide(seen._replace(**changes), self.settings, self.now)
        self.target = verdict.target
        return verdict

    def see_alike(self, demand: float, **changes: Any) -> Verdict:
        """`demand` replicas' worth of work, spread evenly over all."""
        share = demand / max(1, self.target)
        return self.see(*[report(tiers={"interactive": busy(share)})] * self.target, **changes)

    def go_on(self, demand: float, seconds: int) -> list[str]:
        """Once a second; what was done, in order, without the holding."""
        done = []
        for _ in range(seconds):
            self.now += 1.0
            before = self.target
            if self.see_alike(demand).action != "hold":
                done.append(f"{before}->{self.target}")
        return done
