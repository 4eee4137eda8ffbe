"""How many replicas there should be: the policy, with its hysteresis.

Owns what was decided before and since when fewer would do. Does not know Ray Serve, where figures
come from (`autoscaling_report`) or which replica goes (`autoscaling_victims`). Times are in
seconds, monotonic.

1. Up at once, by a bounded step, to the fewest replicas that meet the SLOs of all tiers with work.
2. Down only when fewer replicas would still meet them, with a wider margin, for a settled time;
   then by a bounded step.
3. Replicas that are not known decide nothing: they neither call for more, nor let any go.
4. Latencies that miss their SLO call for one more replica even if the forecast does not, but only
   where there is work enough that another replica could take some of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from controllers.autoscaling_fleet import FleetLoad, fleet_of
from controllers.autoscaling_forecast import Forecast, fewest, forecast
from controllers.autoscaling_report import ReplicaReport
from controllers.autoscaling_settings import AutoscalingSettings
from controllers.autoscaling_trend import Trend

# Latencies are only blamed on too few replicas when these are busy.
MIN_UTILISATION_TO_BLAME = 0.3
MIN_SAMPLES = 10.0
DOWN_MARGIN = 1.15  # fewer replicas must be enough for so much more work


class Observation(NamedTuple):
    """What the policy sees. `reports` by replica, of those that are known; `num_running` counts all
    that run, `target` those that are wanted now, `num_in_routers` requests that no replica has."""

    target: int
    num_running: int
    reports: Mapping[str, ReplicaReport]
    num_in_routers: float
    min_replicas: int
    max_replicas: int


class Verdict(NamedTuple):
    """`action`: up, down, hold. `now` is forecast for the present target, `then` for the new."""

    target: int
    action: str
    reason: str
    load: FleetLoad
    growth: float
    now: Forecast | None = None
    then: Forecast | None = None


class Autoscaler:
    """Call `decide` about once a second."""

    def __init__(self) -> None:
        self._trend = Trend()
        self._last_up_at = float("-inf")
        self._last_change_at = float("-inf")
        self._low_since: float | None = None
        self._idle_since: float | None = None

    def decide(self, seen: Observation, settings: AutoscalingSettings, now: float) -> Verdict:
        load = fleet_of(seen.reports.values(), seen.num_in_routers)
        verdict = self._bounded(seen, load) or self._decide(seen, load, settings, now)
        if verdict.action == "up":
            self._last_up_at = now
        if verdict.action != "hold":
            self._last_change_at = now
            self._low_since = None
        return verdict

    def _bounded(self, seen: Observation, load: FleetLoad) -> Verdict | None:
        """The bounds have moved past the present target."""
        target = min(max(seen.target, seen.min_replicas), seen.max_replicas)
        if target == seen.target:
            return None
        action = "up" if target > seen.target else "down"
        return Verdict(target, action, "bounds", load, 1.0)

    def _decide(
        self, seen: Observation, load: FleetLoad, settings: AutoscalingSettings, now: float
    ) -> Verdict:
        is_idle = not load.has_work and seen.num_in_routers <= 0
        self._note_idle(is_idle and len(seen.reports) >= seen.num_running, now)
        if not seen.target:
            return self._from_zero(seen, load)
        if not seen.reports:
            self._low_since = None
            return Verdict(seen.target, "hold", "no figures", load, 1.0)
        if self._may_be_zero(seen, settings, now):
            return Verdict(0, "down", "no work", load, 1.0)
        self._trend.observe(load.demand, now)
        return self._up(seen, load, settings, now) or self._down(seen, load, settings, now)

    def _note_idle(self, is_idle: bool, now: float) -> None:
        self._idle_since = (self._idle_since or now) if is_idle else None

    def _from_zero(self, seen: Observation, load: FleetLoad) -> Verdict:
        if seen.num_in_routers > 0:
            return Verdict(max(1, seen.min_replicas), "up", "requests wait", load, 1.0)
        return Verdict(0, "hold", "no work", load, 1.0)

    def _may_be_zero(self, seen: Observation, settings: AutoscalingSettings, now: float) -> bool:
        idle_since = self._idle_since
        return (
            seen.min_replicas == 0
            and idle_since is not None
            and now - idle_since >= settings.zero_after_s
        )

    def _up(
        self, seen: Observation, load: FleetLoad, settings: AutoscalingSettings, now: float
    ) -> Verdict | None:
        growth = self._trend.growth(settings.lookahead_s)
        share = settings.slo_share
        present = forecast(load, seen.target, settings, share=share, growth=growth)
        wanted, reason = seen.target, ""
        if not present.is_met:
            wanted = fewest(
                load, seen.target, seen.max_replicas, settings, share=share, growth=growth
            ).num_replicas
            reason = present.limit
        elif self._is_blamed(seen, load, present, settings):
            wanted, reason = seen.target + 1, "measured latency"
        wanted = min(wanted, seen.max_replicas, seen.target + settings.max_step_up)
        if wanted <= seen.target or now - self._last_up_at < settings.up_cooldown_s:
            return None
        then = forecast(load, wanted, settings, share=share, growth=growth)
        return Verdict(wanted, "up", reason, load, growth, present, then)

    def _is_blamed(
        self,
        seen: Observation,
        load: FleetLoad,
        present: Forecast,
        settings: AutoscalingSettings,
    ) -> bool:
        """Not while replicas that were asked for are still to come, or have just come."""
        is_settled = len(seen.reports) >= seen.target and seen.num_running >= seen.target
        is_busy = present.utilisation >= MIN_UTILISATION_TO_BLAME
        return is_settled and is_busy and bool(missed(load, settings))

    def _down(
        self, seen: Observation, load: FleetLoad, settings: AutoscalingSettings, now: float
    ) -> Verdict:
        present = forecast(load, seen.target, settings, share=settings.slo_share)
        fewer, why_not = self._fewer(seen, load, settings)
        if why_not:
            self._low_since = None
            return Verdict(seen.target, "hold", why_not, load, 1.0, present)
        self._low_since = now if self._low_since is None else self._low_since
        is_settled = now - self._low_since >= settings.down_settle_s
        if not is_settled or now - self._last_change_at < settings.down_cooldown_s:
            return Verdict(seen.target, "hold", "fewer would do, not settled", load, 1.0, present)
        assert fewer is not None
        return Verdict(fewer.num_replicas, "down", "fewer do", load, 1.0, present, fewer)

    def _fewer(
        self, seen: Observation, load: FleetLoad, settings: AutoscalingSettings
    ) -> tuple[Forecast | None, str]:
        """The forecast for fewer replicas, or why none may go."""
        lowest = max(1, seen.min_replicas)
        if seen.target <= lowest:
            return None, "fewest allowed"
        if seen.num_running > seen.target or len(seen.reports) < seen.num_running:
            return None, "not every replica is known"
        if seen.num_running < seen.target:
            return None, "replicas are starting"
        late = missed(load, settings)
        if late:
            return None, f"{late} missed"
        growth = self._growth_before_down(load, settings)
        best: Forecast | None = None
        last = max(lowest, seen.target - settings.max_step_down)
        for num in range(seen.target - 1, last - 1, -1):
            refill_ms = load.refill_ms * (seen.target - num)
            found = forecast(
                load,
                num,
                settings,
                share=settings.consolidation_share,
                growth=growth,
                extra_backlog_ms=refill_ms,
            )
            if not found.is_met:
                return best, "" if best else f"{found.limit} with {num}"
            best = found
        return best, ""

    def _growth_before_down(self, load: FleetLoad, settings: AutoscalingSettings) -> float:
        """Noise must not let one go that is missed at once: the larger of the window's work and its
        running mean counts, with a margin, and work that grows as it will be."""
        running = self._trend.quick / load.demand if load.demand else 1.0
        return DOWN_MARGIN * max(1.0, running, self._trend.growth(settings.lookahead_s))


def missed(load: FleetLoad, settings: AutoscalingSettings) -> str:
    """The first latency of a tier that too many requests missed; empty if none."""
    allowed = 1.0 - settings.slo_quantile
    for tier in load.tiers:
        for kind, num, num_missed in (
            ("ttft", tier.num_ttft, tier.num_ttft_missed),
            ("itl", tier.num_itl, tier.num_itl_missed),
        ):
            if num >= MIN_SAMPLES and num_missed > allowed * num:
                return f"{kind} of {tier.name}"
    return ""
