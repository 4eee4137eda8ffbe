"""What one replica tells the autoscaling policy, as the flat figures that Ray Serve carries.

Owns the names of the figures and what makes a report impossible. Does not know how they are
measured (`controllers.replica_meter`) or what is decided (`controllers.autoscaling`).

1. One impossible figure (missing, not a number, negative, absurdly large) and the whole report is
   None: it decides nothing.
2. Fields are only ever added: the policy may be older or newer than a replica during an upgrade.
   Unknown figures are ignored; a field with a default may be missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from controllers.autoscaling_settings import AutoscalingSettings

MAX_FIGURE = 1e15
SETTINGS = "settings/"
TIER = "tier/"
SAMPLE = "sample/"


class TierReport(msgspec.Struct, frozen=True, kw_only=True):
    """One tier's requests on one replica; latencies are of the window, as counts that add up."""

    rank: float
    ttft_slo_ms: float
    itl_slo_ms: float
    backlog_ms: float = 0.0  # prefill of requests without a first token
    requests_per_s: float = 0.0
    prefill_ms_per_s: float = 0.0  # arriving, at the engine's best pace
    service_ms: float = 0.0  # mean prefill of one request alone
    service_ms2: float = 0.0  # mean of its square
    num_ttft: float = 0.0
    num_ttft_missed: float = 0.0
    num_itl: float = 0.0
    num_itl_missed: float = 0.0


class ReplicaReport(msgspec.Struct, frozen=True, kw_only=True):
    """One replica's figures of now. Rates are of the window."""

    uptime_s: float
    prefill_busy: float  # share of the time in iterations that prefill
    num_active: float  # requests the engine runs
    num_waiting: float  # at the gate and in the engine's queue
    max_running: float  # requests the engine can run
    used_blocks: float  # held by running requests
    total_blocks: float
    cached_blocks: float = 0.0
    block_size: float = 1.0
    idle_decode_ms: float = 0.0  # an iteration with hardly a block in use
    decode_ms: float = 0.0  # with those in use now
    prefill_ms_per_token: float = 0.0  # at the engine's best pace
    prompt_tokens_per_s: float = 0.0
    hit_tokens_per_s: float = 0.0
    reasked_tokens_per_s: float = 0.0  # evicted and asked for within their wanted lifetime
    content_tokens: float = 0.0  # cached, weighted by retention priority / 100
    tiers: dict[str, TierReport] = {}
    sample: tuple[float, ...] = ()  # see controllers.cache_sample


_PLAIN = tuple(name for name in ReplicaReport.__struct_fields__ if name not in ("tiers", "sample"))


def figures_of(report: ReplicaReport, settings: AutoscalingSettings) -> dict[str, float]:
    """Flat numbers by name; the settings travel along."""
    figures = {name: float(getattr(report, name)) for name in _PLAIN}
    for name, tier in report.tiers.items():
        for field in tier.__struct_fields__:
            figures[f"{TIER}{name}/{field}"] = float(getattr(tier, field))
    for index, value in enumerate(report.sample):
        figures[f"{SAMPLE}{index}"] = float(value)
    for field in settings.__struct_fields__:
        figures[f"{SETTINGS}{field}"] = float(getattr(settings, field))
    return figures


def report_of(figures: Mapping[str, object]) -> ReplicaReport | None:
    """None if anything about it is impossible."""
    values = {n: _number(value) for n, value in figures.items() if not n.startswith(SETTINGS)}
    if any(value is None for value in values.values()):
        return None
    tiers: dict[str, dict[str, float]] = {}
    sample: dict[int, float] = {}
    plain: dict[str, object] = {}
    for name, value in values.items():
        assert value is not None
        if name.startswith(TIER):
            tier, _, field = name[len(TIER) :].rpartition("/")
            tiers.setdefault(tier, {})[field] = value
        elif name.startswith(SAMPLE):
            sample[int(name[len(SAMPLE) :])] = value
        elif name in _PLAIN:
            plain[name] = value
    plain["tiers"] = tiers
    plain["sample"] = [sample[index] for index in sorted(sample)]
    try:
        report = msgspec.convert(plain, ReplicaReport)
    except msgspec.ValidationError:
        return None
    return report if _is_coherent(report) else None


def settings_of(figures: Mapping[str, float]) -> AutoscalingSettings | None:
    """None if missing or impossible; what another version does not say keeps its default."""
    said = {name for name in figures if name.startswith(SETTINGS)}
    values = {name[len(SETTINGS) :]: figures[name] for name in said}
    known = {name: values[name] for name in AutoscalingSettings.__struct_fields__ if name in values}
    if not known:
        return None
    try:
        # Switches come back as 0.0 and 1.0, counts as whole floats.
        return msgspec.convert(
            {name: _typed(name, value) for name, value in known.items()}, AutoscalingSettings
        )
    except (msgspec.ValidationError, ValueError, OverflowError):
        return None


_DEFAULTS = AutoscalingSettings()


def _typed(name: str, value: float) -> object:
    return type(getattr(_DEFAULTS, name))(value)


def _number(value: object) -> float | None:
    if isinstance(value, (int, float)) and math.isfinite(value) and 0 <= value <= MAX_FIGURE:
        return float(value)
    return None


def _is_coherent(report: ReplicaReport) -> bool:
    return (
        report.used_blocks <= report.total_blocks
        and report.prefill_busy <= 1.0
        and report.max_running > 0
        and all(
            tier.num_ttft_missed <= tier.num_ttft and tier.num_itl_missed <= tier.num_itl
            for tier in report.tiers.values()
        )
    )
