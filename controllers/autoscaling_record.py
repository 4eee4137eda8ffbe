"""A verdict of the policy -> the record that tells of it, with what it was decided by."""

from __future__ import annotations

import math

from controllers.autoscaling import Observation, Verdict
from controllers.autoscaling_fleet import TierLoad
from controllers.autoscaling_forecast import Forecast, TierForecast
from controllers.autoscaling_settings import AutoscalingSettings
from controllers.events import SCHEMA
from controllers.records import ScalingDecision

# A queue that never ends; JSON has no infinity.
MAX_MS = 1e9


def record_of(
    verdict: Verdict,
    seen: Observation,
    settings: AutoscalingSettings,
    deployment: str,
    ts_ms: int,
) -> ScalingDecision:
    """`deployment` is its name in Serve."""
    load, now, then = verdict.load, verdict.now, verdict.then
    tier = now.tier if now is not None else None
    measured = next((t for t in load.tiers if tier is not None and t.name == tier.name), None)
    return ScalingDecision(
        schema=SCHEMA,
        ts_ms=ts_ms,
        deployment=deployment,
        num_replicas=seen.num_running,
        target_replicas=verdict.target,
        reason=verdict.reason,
        action=verdict.action,
        is_advisory=settings.advisory,
        old_target_replicas=seen.target,
        min_replicas=seen.min_replicas,
        max_replicas=seen.max_replicas,
        num_known=len(seen.reports),
        demand=_rounded(load.demand),
        growth=_rounded(verdict.growth),
        backlog_ms=_rounded(load.backlog_ms),
        num_active=round(load.num_active),
        num_waiting=round(load.num_waiting),
        used_blocks=round(load.used_blocks),
        total_blocks=round(load.total_blocks * load.num_replicas),
        hit_rate=None if load.hit_rate is None else _rounded(load.hit_rate),
        reasked_tokens_per_s=_rounded(load.reasked_tokens_per_s),
        requests_per_s=_rounded(sum(t.requests_per_s for t in load.tiers)),
        tier=None if tier is None else tier.name,
        **_measured(measured),
        **_predicted("", now, tier),
        **_predicted("new_", then, then.tier if then is not None else None),
    )


def _measured(tier: TierLoad | None) -> dict[str, float | None]:
    if tier is None:
        return {}
    return {
        "ttft_slo_ms": tier.ttft_slo_ms,
        "itl_slo_ms": tier.itl_slo_ms,
        "ttft_missed_share": _share(tier.num_ttft_missed, tier.num_ttft),
        "itl_missed_share": _share(tier.num_itl_missed, tier.num_itl),
    }


def _predicted(
    prefix: str, found: Forecast | None, tier: TierForecast | None
) -> dict[str, float | None]:
    if found is None:
        return {}
    return {
        f"{prefix}utilisation": _rounded(found.utilisation),
        f"{prefix}predicted_ttft_ms": None if tier is None else _rounded(tier.ttft_ms),
        f"{prefix}predicted_itl_ms": None if tier is None else _rounded(tier.itl_ms),
    }


def _share(part: float, whole: float) -> float | None:
    return _rounded(part / whole) if whole else None


def _rounded(value: float) -> float:
    return round(value, 3) if math.isfinite(value) and value < MAX_MS else MAX_MS
