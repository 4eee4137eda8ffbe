"""The reports of all replicas put together: the work that the fleet has, whoever has it now.

Pure sums; knows neither how many replicas are enough nor what was decided before.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from controllers.autoscaling_report import ReplicaReport, TierReport

# What a leaving replica's cache was good for lately is computed again elsewhere: at most the hits
# of this long.
REFILL_HORIZON_S = 300.0


class TierLoad(NamedTuple):
    """One tier over the fleet. `demand` is prefill seconds per second: 1 keeps one replica busy."""

    name: str
    rank: float
    ttft_slo_ms: float
    itl_slo_ms: float
    demand: float
    backlog_ms: float
    requests_per_s: float
    service_ms: float
    service_ms2: float
    num_ttft: float
    num_ttft_missed: float
    num_itl: float
    num_itl_missed: float

    @property
    def has_work(self) -> bool:
        return self.requests_per_s > 0 or self.backlog_ms > 0


class FleetLoad(NamedTuple):
    """`tiers` in the order in which they are served. Blocks and slots are of one replica, what is
    used of them is of all. `hit_rate` None: no prompt in the window."""

    num_replicas: int  # whose figures these are
    tiers: tuple[TierLoad, ...]
    num_active: float
    num_waiting: float
    max_running: float
    used_blocks: float
    total_blocks: float
    idle_decode_ms: float
    decode_rise_ms: float  # of an iteration, from no block in use to all
    refill_ms: float  # prefill that an average replica's cache saves, once
    hit_rate: float | None
    reasked_tokens_per_s: float

    @property
    def demand(self) -> float:
        return sum(tier.demand for tier in self.tiers)

    @property
    def backlog_ms(self) -> float:
        return sum(tier.backlog_ms for tier in self.tiers)

    @property
    def has_work(self) -> bool:
        has_requests = self.num_active > 0 or self.num_waiting > 0
        return has_requests or any(tier.has_work for tier in self.tiers)


def fleet_of(reports: Collection[ReplicaReport], num_in_routers: float) -> FleetLoad:
    """`num_in_routers` requests wait in routers: nothing is known of them but their number, so
    each counts as a mean one."""
    tiers = _with_routers(_tiers(reports), num_in_routers)
    prompt = sum(report.prompt_tokens_per_s for report in reports)
    hits = sum(report.hit_tokens_per_s for report in reports)
    return FleetLoad(
        num_replicas=len(reports),
        tiers=tuple(sorted(tiers, key=lambda tier: (tier.rank, tier.name))),
        num_active=sum(report.num_active for report in reports),
        num_waiting=sum(report.num_waiting for report in reports) + num_in_routers,
        max_running=_mean([report.max_running for report in reports]),
        used_blocks=sum(report.used_blocks for report in reports),
        total_blocks=_mean([report.total_blocks for report in reports]),
        idle_decode_ms=_mean([report.idle_decode_ms for report in reports]),
        decode_rise_ms=_mean([_rise(report) for report in reports]),
        refill_ms=_mean([_refill_ms(report) for report in reports]),
        hit_rate=min(1.0, hits / prompt) if prompt > 0 else None,
        reasked_tokens_per_s=sum(report.reasked_tokens_per_s for report in reports),
    )


def _tiers(reports: Collection[ReplicaReport]) -> list[TierLoad]:
    found: dict[str, list[tuple[TierReport, float]]] = {}
    for report in reports:
        for name, demand in _demands(report).items():
            found.setdefault(name, []).append((report.tiers[name], demand))
    return [_tier(name, parts) for name, parts in found.items()]


def _demands(report: ReplicaReport) -> Mapping[str, float]:
    """Work of each tier on one replica. What its engine spent is the truth while it keeps up; when
    it does not, what arrives is."""
    arriving = {name: tier.prefill_ms_per_s / 1e3 for name, tier in report.tiers.items()}
    total = sum(arriving.values())
    if not total:
        return arriving
    demand = max(total, report.prefill_busy)
    return {name: demand * part / total for name, part in arriving.items()}


def _tier(name: str, parts: Sequence[tuple[TierReport, float]]) -> TierLoad:
    """An SLO that replicas tell differently, while it changes, is the stricter one."""
    tiers = [tier for tier, _ in parts]
    requests_per_s = sum(tier.requests_per_s for tier in tiers)

    def by_request(field: str) -> float:
        weighted = sum(getattr(tier, field) * tier.requests_per_s for tier in tiers)
        return weighted / requests_per_s if requests_per_s else 0.0

    def total(field: str) -> float:
        return float(sum(getattr(tier, field) for tier in tiers))

    return TierLoad(
        name=name,
        rank=min(tier.rank for tier in tiers),
        ttft_slo_ms=min(tier.ttft_slo_ms for tier in tiers),
        itl_slo_ms=min(tier.itl_slo_ms for tier in tiers),
        demand=sum(demand for _, demand in parts),
        backlog_ms=total("backlog_ms"),
        requests_per_s=requests_per_s,
        service_ms=by_request("service_ms"),
        service_ms2=by_request("service_ms2"),
        num_ttft=total("num_ttft"),
        num_ttft_missed=total("num_ttft_missed"),
        num_itl=total("num_itl"),
        num_itl_missed=total("num_itl_missed"),
    )


def _with_routers(tiers: list[TierLoad], num_in_routers: float) -> list[TierLoad]:
    rate = sum(tier.requests_per_s for tier in tiers)
    if not rate:
        return tiers
    return [
        tier._replace(
            backlog_ms=tier.backlog_ms
            + num_in_routers * tier.requests_per_s / rate * tier.service_ms
        )
        for tier in tiers
    ]


def _rise(report: ReplicaReport) -> float:
    """Two points make a line; a replica with hardly a block in use shows none."""
    share = report.used_blocks / report.total_blocks if report.total_blocks else 0.0
    rise = max(0.0, report.decode_ms - report.idle_decode_ms)
    return rise / share if share > 0.01 else 0.0


def _refill_ms(report: ReplicaReport) -> float:
    cached = report.cached_blocks * report.block_size
    return report.prefill_ms_per_token * min(cached, report.hit_tokens_per_s * REFILL_HORIZON_S)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
