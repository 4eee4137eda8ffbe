"""Service tiers: which requests go first, and what each may expect.

Owns the tiers' settings and the choice of a tier for a request type. Does not know who waits, how
long anything takes or what retention a request type gets.

1. A lower rank goes before every higher one; tiers of one rank are equals.
2. Every request type has a tier: its own entry, or the default tier.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from controllers.errors import SettingsError

Rank = Annotated[int, Meta(ge=0, le=99)]
Positive = Annotated[float, Meta(gt=0)]


class TierRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tier. Times are of one request, as its client sees them."""

    rank: Rank = 1
    ttft_slo_ms: Positive = 5000.0  # time to first token that autoscaling holds
    itl_slo_ms: Positive = 200.0  # time between tokens that autoscaling holds
    # A request whose first token is predicted later than this is refused at once; None: it waits.
    max_ttft_ms: Positive | None = None
    # An executor that makes no token for so long, with the request in its hands, has failed.
    first_token_timeout_s: Positive = 120.0
    inter_token_timeout_s: Positive = 60.0


BUILT_IN_TIERS = {
    "interactive": TierRule(rank=0, ttft_slo_ms=2000.0, itl_slo_ms=100.0),
    "standard": TierRule(),
    "batch": TierRule(rank=2, ttft_slo_ms=60_000.0, itl_slo_ms=1000.0),
}
BUILT_IN_REQUEST_TYPES = {
    "system": "interactive",
    "interactive": "interactive",
    "agent": "standard",
    "oneoff": "standard",
    "batch": "batch",
}


class TierPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All tiers, and the tier of each request type. What is given replaces or joins the built-in
    entries."""

    default: str = "standard"  # of request types without an entry
    rules: dict[str, TierRule] = {}
    request_types: dict[str, str] = {}

    def __post_init__(self) -> None:
        rules = {**BUILT_IN_TIERS, **self.rules}
        request_types = {**BUILT_IN_REQUEST_TYPES, **self.request_types}
        msgspec.structs.force_setattr(self, "rules", rules)
        msgspec.structs.force_setattr(self, "request_types", request_types)

    def tier_of(self, request_type: str) -> str:
        return self.request_types.get(request_type, self.default)

    def rule(self, tier: str) -> TierRule:
        """Of the default tier for one that is gone: policies may change while requests wait."""
        return self.rules.get(tier) or self.rules[self.default]

    def check(self) -> None:
        """Raises SettingsError for a tier that has no rule."""
        named = {"tiers.default": self.default}
        named.update({f"tiers.request_types.{t}": tier for t, tier in self.request_types.items()})
        for path, tier in named.items():
            if tier not in self.rules:
                raise SettingsError(f"{path}: {tier!r} is none of {sorted(self.rules)}")
