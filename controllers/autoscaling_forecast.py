"""What time to first token and between tokens a number of replicas would give.

Prefill is a queue: tiers go in order of rank, without interrupting what runs; its servers are
pooled as far as affinity to caches lets them, taken as the square root of their number. Decode is a
curve over the share of blocks in use, slowed by the prefills between. Arithmetic only; knows no
history.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from controllers.autoscaling_fleet import FleetLoad, TierLoad
from controllers.autoscaling_settings import AutoscalingSettings

MAX_UTILISATION = 0.95
# Where a prefill alone takes longer than the SLO allows, no number of replicas helps: then requests
# shall not wait longer than this share of it.
WAIT_SHARE = 0.5
# A decode iteration of an engine with hardly any work, likewise.
ITL_SHARE = 1.25
# A first token comes at the end of an iteration that began after half of another.
DECODES_BEFORE_FIRST = 1.5
# So much of the time allowed for a first token may be work that waits, and is nobody's trouble:
# there is always some, in the middle of its prefill.
IN_TIME_SHARE = 0.5


class TierForecast(NamedTuple):
    """Predicted at the quantile (ttft) and on average (itl), and what was allowed."""

    name: str
    ttft_ms: float
    ttft_limit_ms: float
    itl_ms: float
    itl_limit_ms: float


class Forecast(NamedTuple):
    """`limit`: what is not met, empty if all is: ttft, itl, blocks, slots, utilisation. `tier`: the
    one that is nearest to its limits."""

    num_replicas: int
    utilisation: float  # of prefill
    tier: TierForecast | None
    limit: str

    @property
    def is_met(self) -> bool:
        return not self.limit


def forecast(
    load: FleetLoad,
    num_replicas: int,
    settings: AutoscalingSettings,
    *,
    share: float,
    growth: float = 1.0,
    extra_backlog_ms: float = 0.0,
) -> Forecast:
    """With `growth` times the present work, within `share` of the SLOs. `num_replicas` >= 1."""
    num = num_replicas
    blocks = _ratio(load.used_blocks * growth, load.total_blocks * num)
    rhos = _utilisations(load, num, settings, share, growth, extra_backlog_ms)
    utilisation = sum(rhos)
    decode_ms = load.idle_decode_ms + load.decode_rise_ms * min(1.0, blocks)
    itl_ms = decode_ms / (1.0 - utilisation) if utilisation < 1.0 else math.inf
    waits = _waits(load, rhos, _pooled(num), settings.slo_quantile)
    tiers = [
        _tier_forecast(tier, wait_ms, itl_ms, decode_ms, load.idle_decode_ms, share)
        for tier, wait_ms in zip(load.tiers, waits, strict=True)
        if tier.has_work
    ]
    tightest = max(tiers, key=_strain, default=None)
    limit = _limit(load, num, settings, blocks, utilisation, tightest, growth)
    return Forecast(num, utilisation, tightest, limit)


def fewest(
    load: FleetLoad,
    lowest: int,
    highest: int,
    settings: AutoscalingSettings,
    *,
    share: float,
    growth: float = 1.0,
) -> Forecast:
    """The first number in [lowest, highest] that meets all limits, or `highest`. More replicas are
    never worse, so it is found by halving."""
    low, high = max(1, lowest), max(1, highest)
    while low < high:
        middle = (low + high) // 2
        if forecast(load, middle, settings, share=share, growth=growth).is_met:
            high = middle
        else:
            low = middle + 1
    return forecast(load, low, settings, share=share, growth=growth)


def _utilisations(
    load: FleetLoad,
    num: int,
    settings: AutoscalingSettings,
    share: float,
    growth: float,
    extra_ms: float,
) -> list[float]:
    """By tier: what arrives, and what waits too long, to be done within the time for it."""
    total = load.demand
    rhos = []
    for tier in load.tiers:
        waiting_ms = tier.backlog_ms + extra_ms * _ratio(tier.demand, total)
        in_time_ms = num * IN_TIME_SHARE * share * tier.ttft_slo_ms
        late = max(0.0, waiting_ms - in_time_ms) / (settings.backlog_drain_s * 1e3)
        rhos.append((tier.demand * growth + late) / num)
    return rhos


def _pooled(num: int) -> float:
    return math.sqrt(num)


def _waits(load: FleetLoad, rhos: list[float], servers: float, quantile: float) -> list[float]:
    """Time in the queue by tier, at the quantile of all requests, in ms."""
    total = sum(rhos)
    if not total:
        return [0.0] * len(rhos)
    # Mean rest of what is being served; weighted by how long each is served.
    rest_ms = sum(rho * _rest_ms(tier) for tier, rho in zip(load.tiers, rhos, strict=True)) / total
    exponent = math.sqrt(2.0 * (servers + 1.0)) - 1.0
    p_wait = min(1.0, total) ** exponent
    waits, before = [], 0.0
    for rho in rhos:
        free = max(0.0, 1.0 - before) * max(0.0, 1.0 - before - rho)
        mean_ms = rest_ms / servers / free if free else math.inf
        late = p_wait / (1.0 - quantile)
        waits.append(mean_ms * math.log(late) if late > 1.0 else 0.0)
        before += rho
    return waits


def _rest_ms(tier: TierLoad) -> float:
    return tier.service_ms2 / (2.0 * tier.service_ms) if tier.service_ms else 0.0


def _tier_forecast(
    tier: TierLoad,
    wait_ms: float,
    itl_ms: float,
    decode_ms: float,
    idle_decode_ms: float,
    share: float,
) -> TierForecast:
    spread = math.sqrt(max(0.0, tier.service_ms2 - tier.service_ms**2))
    own_ms = tier.service_ms + spread + DECODES_BEFORE_FIRST * decode_ms
    return TierForecast(
        name=tier.name,
        ttft_ms=wait_ms + own_ms,
        ttft_limit_ms=max(share * tier.ttft_slo_ms, own_ms + WAIT_SHARE * tier.service_ms),
        itl_ms=itl_ms,
        itl_limit_ms=max(share * tier.itl_slo_ms, ITL_SHARE * idle_decode_ms),
    )


def _strain(tier: TierForecast) -> float:
    return max(_ratio(tier.ttft_ms, tier.ttft_limit_ms), _ratio(tier.itl_ms, tier.itl_limit_ms))


def _limit(
    load: FleetLoad,
    num: int,
    settings: AutoscalingSettings,
    blocks: float,
    utilisation: float,
    tier: TierForecast | None,
    growth: float,
) -> str:
    if tier is not None and tier.ttft_ms > tier.ttft_limit_ms:
        return "ttft"
    if tier is not None and tier.itl_ms > tier.itl_limit_ms:
        return "itl"
    if blocks > settings.max_block_share:
        return "blocks"
    if _slots(load) * growth > settings.max_block_share * load.max_running * num:
        return "slots"
    return "utilisation" if utilisation > MAX_UTILISATION else ""


def _slots(load: FleetLoad) -> float:
    """Places that requests want in the engines: those that wait while all are taken as well."""
    are_taken = load.num_active >= 0.9 * load.max_running * load.num_replicas
    return load.num_active + (load.num_waiting if are_taken else 0.0)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
