"""The section `autoscaling` of the settings.

Every value is a number or a switch: replicas report them as figures (`autoscaling_report`), so that
a changed value reaches the policy, which runs in Ray Serve's controller, without restarting a
replica. Does not know Ray Serve.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from controllers.errors import SettingsError

Seconds = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(gt=0, le=1)]
Count = Annotated[int, Meta(ge=1)]
CountOrNone = Annotated[int, Meta(ge=0)]


class AutoscalingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Targets are those of the tiers: `tiers.rules.*.ttft_slo_ms` and `itl_slo_ms`."""

    enabled: bool = False  # False: executor.num_replicas replicas run
    advisory: bool = False  # record what would be done, and do nothing
    min_replicas: CountOrNone = 1  # 0: none without work
    max_replicas: Count = 4
    interval_s: Annotated[float, Meta(ge=0.2, le=10)] = 1.0  # between two reports and decisions
    window_s: Seconds = 30.0  # rates and latencies are of so long
    slo_quantile: Annotated[float, Meta(ge=0.5, le=0.99)] = 0.9  # so many requests meet their SLO
    slo_share: Share = 0.8  # predicted times may take this share of an SLO
    consolidation_share: Share = 0.6  # and this one with fewer replicas, before one is removed
    backlog_drain_s: Seconds = 15.0  # what waits now is to be done within this
    lookahead_s: NotNegative = 60.0  # growing work is served as it will be then: a replica's start
    max_block_share: Share = 0.9  # of a replica's blocks, held by running requests
    max_step_up: Count = 4
    max_step_down: Count = 1
    up_cooldown_s: NotNegative = 10.0
    down_cooldown_s: NotNegative = 60.0  # after any change
    down_settle_s: NotNegative = 120.0  # fewer replicas would have been enough for so long
    zero_after_s: Seconds = 300.0  # without any request, where min_replicas is 0
    cold_start_s: NotNegative = 10.0  # latencies of a younger replica say nothing
    stale_after_s: Seconds = 5.0  # a replica whose figures are older is not known
    record_interval_s: NotNegative = 30.0  # between two records that change nothing; 0: all
    # Remove the replica whose cache is worth least; False: the one that Ray Serve picks.
    coldest_first: bool = True
    # A stopping replica serves its streams for so long; longer ones are cut.
    drain_timeout_s: Seconds = 3600.0
    warm_start: bool = False  # compute the hottest shared prefixes on a new replica
    warm_start_min_uses: Count = 3  # by so many requests a prefix counts as shared
    warm_start_max_prefixes: Count = 16
    warm_start_max_tokens: Count = 32_768  # of all of them together

    @property
    def may_be_zero(self) -> bool:
        """There may be no replica, and all is well."""
        return self.enabled and self.min_replicas == 0

    def check(self) -> None:
        """Laws between the values. Raises SettingsError."""
        if self.max_replicas < self.min_replicas:
            raise SettingsError(
                f"autoscaling.max_replicas: {self.max_replicas} must be at least "
                f"autoscaling.min_replicas, {self.min_replicas}"
            )
        if self.consolidation_share >= self.slo_share:
            raise SettingsError(
                f"autoscaling.consolidation_share: {self.consolidation_share} must be less than "
                f"autoscaling.slo_share, {self.slo_share}: else replicas come and go"
            )
        if self.down_settle_s < self.window_s:
            raise SettingsError(
                f"autoscaling.down_settle_s: {self.down_settle_s} must be at least "
                f"autoscaling.window_s, {self.window_s}: a removed replica's share of the work "
                "shows elsewhere only after that"
            )
