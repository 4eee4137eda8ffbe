"""What each tenant may ask for: requests and uncached tokens per second, requests at a time.

Token buckets over a clock of the caller's. The limits hold for one process: of several ingresses
each has an equal part. Knows nothing of what waits or of what the fleet could do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from controllers.errors import RateLimited

# Nobody knows when one of the tenant's requests will end.
CONCURRENCY_RETRY_S = 1.0

Rate = Annotated[float, Meta(gt=0)]


class TenantLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of one tenant, over all ingresses. None: no limit. Each prompt of a request counts."""

    # Share of what is free inside a rank, beside other tenants that want it too.
    weight: Annotated[float, Meta(ge=0.01, le=1000)] = 1.0
    max_requests_per_s: Rate | None = None
    max_uncached_tokens_per_s: Rate | None = None
    max_concurrent: Annotated[int, Meta(ge=1)] | None = None


class TokenBucket:
    """Fills with `rate` per second up to `burst`; may be in debt. Starts full."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = rate
        self.burst = burst
        self._level = burst
        self._at = now

    def level(self, now: float) -> float:
        return min(self.burst, self._level + self.rate * max(0.0, now - self._at))

    def wait_s(self, amount: float, now: float) -> float:
        """Until so much is there; more than ever fits needs a full bucket only. 0: it is."""
        return max(0.0, min(amount, self.burst) - self.level(now)) / self.rate

    def take(self, amount: float, now: float) -> None:
        """Below 0 is debt; a negative amount gives back."""
        self._level = self.level(now) - amount
        self._at = max(self._at, now)


class TenantMeter:
    """One tenant's use against its limits, in one of `num_ingress` processes."""

    def __init__(self, limits: TenantLimits, burst_s: float, num_ingress: int, now: float) -> None:
        self.num_running = 0
        self.configure(limits, burst_s, num_ingress, now)

    def configure(self, limits: TenantLimits, burst_s: float, num_ingress: int, now: float) -> None:
        """New limits begin with full buckets; what runs stays counted."""
        self.limits = limits
        self._requests = _bucket(limits.max_requests_per_s, burst_s, num_ingress, now)
        self._tokens = _bucket(limits.max_uncached_tokens_per_s, burst_s, num_ingress, now)
        at_once = limits.max_concurrent
        self._max_running = math.inf if at_once is None else math.ceil(at_once / num_ingress)

    @property
    def has_token_limit(self) -> bool:
        return self._tokens is not None

    def check(self, tenant: str, tokens: float, now: float) -> None:
        """Raises RateLimited, and counts nothing, if one more request is too much."""
        limits = self.limits
        if self.num_running >= self._max_running:
            raise RateLimited(
                f"tenant {tenant!r} may have {limits.max_concurrent} requests at a time",
                CONCURRENCY_RETRY_S,
            )
        for bucket, amount, limit, what in (
            (self._requests, 1.0, limits.max_requests_per_s, "requests"),
            (self._tokens, tokens, limits.max_uncached_tokens_per_s, "uncached tokens"),
        ):
            wait_s = 0.0 if bucket is None else bucket.wait_s(amount, now)
            if wait_s > 0:
                raise RateLimited(f"tenant {tenant!r} is over {limit:g} {what} per second", wait_s)

    def enter(self, tokens: float, now: float) -> None:
        self.num_running += 1
        if self._requests is not None:
            self._requests.take(1.0, now)
        self.charge(tokens, now)

    def charge(self, tokens: float, now: float) -> None:
        """So many tokens more than was said before; negative: less."""
        if self._tokens is not None:
            self._tokens.take(tokens, now)


class RateLimits:
    """Meters by tenant; a tenant without limits has one too, so that new limits find it counted."""

    def __init__(
        self, limits: Mapping[str, TenantLimits], burst_s: float, num_ingress: int
    ) -> None:
        self._meters: dict[str, TenantMeter] = {}
        self._limits = dict(limits)
        self._burst_s = burst_s
        self._num_ingress = num_ingress

    def configure(
        self,
        limits: Mapping[str, TenantLimits],
        burst_s: float,
        now: float,
        num_ingress: int,
    ) -> None:
        """A tenant whose limits stay the same keeps its buckets as they are."""
        has_new_burst = (burst_s, num_ingress) != (self._burst_s, self._num_ingress)
        self._limits = dict(limits)
        self._burst_s, self._num_ingress = burst_s, num_ingress
        for tenant, meter in self._meters.items():
            wanted = self.limits_of(tenant)
            if has_new_burst or wanted != meter.limits:
                meter.configure(wanted, burst_s, self._num_ingress, now)

    def limits_of(self, tenant: str) -> TenantLimits:
        return self._limits.get(tenant) or TenantLimits()

    def meter(self, tenant: str, now: float) -> TenantMeter:
        meter = self._meters.get(tenant)
        if meter is None:
            limits = self.limits_of(tenant)
            meter = TenantMeter(limits, self._burst_s, self._num_ingress, now)
            self._meters[tenant] = meter
        return meter


def _bucket(rate: float | None, burst_s: float, num_ingress: int, now: float) -> TokenBucket | None:
    if rate is None:
        return None
    own_rate = rate / num_ingress
    return TokenBucket(own_rate, max(1.0, own_rate * burst_s), now)
