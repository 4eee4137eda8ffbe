"""Where requests of a trace stand among others: their tiers and tenants, as the settings rank them.

Knows no time and nobody who waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from controllers.errors import SettingsError
from controllers.rate_limits import TenantLimits
from controllers.replica_meter import TierTarget
from controllers.service_tiers import TierPolicy
from controllers.simulation.trace import Request

_Key: TypeAlias = tuple[str, str | None, str]


class Standing(NamedTuple):
    """`weight` is the tenant's; `max_ttft_ms` None: any time is in time."""

    tier: str
    rank: int
    tenant: str
    weight: float
    max_ttft_ms: float | None
    target: TierTarget  # what its worker measures it by


class Standings:
    """Raises SettingsError for a tier that has no rule."""

    def __init__(
        self,
        requests: Sequence[Request],
        policy: TierPolicy,
        limits: Mapping[str, TenantLimits],
    ) -> None:
        self._standings: dict[_Key, Standing] = {}
        for request in requests:
            key = _key_of(request)
            if key not in self._standings:
                self._standings[key] = _standing(request, policy, limits)

    @property
    def has_deadlines(self) -> bool:
        """Some requests are refused rather than late."""
        return any(s.max_ttft_ms is not None for s in self._standings.values())

    def of(self, request: Request) -> Standing:
        return self._standings[_key_of(request)]


def tier_of(request: Request, policy: TierPolicy) -> str:
    return policy.tier_of(request.request_type) if request.tier is None else request.tier


def _key_of(request: Request) -> _Key:
    return request.request_type, request.tier, request.tenant


def _standing(request: Request, policy: TierPolicy, limits: Mapping[str, TenantLimits]) -> Standing:
    tier = tier_of(request, policy)
    if tier not in policy.rules:
        raise SettingsError(
            f"request {request.number} of the trace has tier {tier!r}, which is none of "
            f"{sorted(policy.rules)}"
        )
    rule, own = policy.rules[tier], limits.get(request.tenant) or TenantLimits()
    target = TierTarget(tier, rule.rank, rule.ttft_slo_ms, rule.itl_slo_ms)
    return Standing(tier, rule.rank, request.tenant, own.weight, rule.max_ttft_ms, target)
