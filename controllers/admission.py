"""What a router lets in: tenants' limits, and a bound on what it has sent that has not begun.

A request counts as waiting here from the moment it is let in until its first token, wherever it
waits. Workers' gates keep the order and their own bounds; this one keeps a flood from filling the
router's process. Who gives way is `fair_queue`'s. `now` is in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from controllers.errors import Overloaded
from controllers.fair_queue import Bounds, FairQueue
from controllers.rate_limits import RateLimits, TenantLimits
from controllers.start_rate import StartRate
from controllers.waiting import Waiting

Positive = Annotated[int, Meta(ge=1)]
# Nothing is started from here, so no turn is ever given; any quantum does.
QUANTUM_TOKENS = 8192


class AdmissionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of each ingress."""

    max_waiting_requests: Positive = 800  # let in, and without a first token
    max_waiting_tokens: Positive | None = None  # their uncached tokens
    burst_s: Annotated[float, Meta(gt=0)] = 5.0  # of a tenant's rates that may come at once

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.max_waiting_requests, self.max_waiting_tokens)


def bounds_of(settings: AdmissionSettings, gates: Bounds, share: float) -> AdmissionSettings:
    """Bounds of one ingress. Requests wait there instead of at the gates: no more of them than its
    share of the gates (gates by ingresses) would take, each with one more that is being started."""
    max_requests = math.ceil(share * (gates.max_requests + 1))
    max_tokens = settings.max_waiting_tokens
    if gates.max_tokens is not None:
        at_gates = math.ceil(share * gates.max_tokens)
        max_tokens = at_gates if max_tokens is None else min(max_tokens, at_gates)
    return msgspec.structs.replace(
        settings,
        max_waiting_requests=min(settings.max_waiting_requests, max_requests),
        max_waiting_tokens=max_tokens,
    )


@dataclass
class _Inside:
    item: Waiting
    charged_tokens: float


class Admission:
    """Requests of one router, from being let in to their end."""

    def __init__(
        self,
        settings: AdmissionSettings,
        limits: Mapping[str, TenantLimits],
        num_ingress: int = 1,
    ) -> None:
        self._limits = RateLimits(limits, settings.burst_s, num_ingress)
        self._queue = FairQueue(settings.bounds, QUANTUM_TOKENS)
        self._has_token_bound = settings.max_waiting_tokens is not None
        self._inside: dict[str, _Inside] = {}
        self._rate = StartRate()

    def configure(
        self,
        settings: AdmissionSettings,
        limits: Mapping[str, TenantLimits],
        now: float,
        num_ingress: int,
    ) -> None:
        """Lower bounds hold for the next request; nobody inside is sent away."""
        self._queue.bounds = settings.bounds
        self._has_token_bound = settings.max_waiting_tokens is not None
        self._limits.configure(limits, settings.burst_s, now, num_ingress)

    @property
    def num_inside(self) -> int:
        return len(self._inside)

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def weight_of(self, tenant: str) -> float:
        return self._limits.limits_of(tenant).weight

    def needs_tokens(self, tenant: str, now: float) -> bool:
        """Whether anything depends on the tokens of this tenant's next request."""
        return self._has_token_bound or self._limits.meter(tenant, now).has_token_limit

    def enter(self, item: Waiting) -> list[Waiting]:
        """Let it in. Returns those that gave way: they wait no longer, and are inside until they
        `leave`.

        Raises RateLimited or Overloaded, with nothing changed.
        """
        now, meter = item.submitted_s, self._limits.meter(item.tenant, item.submitted_s)
        meter.check(item.tenant, item.uncached_tokens, now)
        try:
            displaced = self._queue.submit(item)
        except Overloaded as error:
            raise Overloaded(str(error), self.retry_after_s(item.rank, now)) from None
        meter.enter(item.uncached_tokens, now)
        self._inside[item.request_id] = _Inside(item, item.uncached_tokens)
        return displaced

    def retry_after_s(self, rank: int, now: float) -> float:
        """When there may be room for a request of this rank."""
        return self._rate.retry_after_s(self._queue.num_up_to(rank), now)

    def started(self, request_id: str, uncached_tokens: int | None, now: float) -> None:
        """Its first token came; `uncached_tokens` is what it really took, if that is known."""
        inside = self._inside.get(request_id)
        if inside is None:
            return
        if self._queue.cancel(request_id):
            self._rate.add(1, now)
        if uncached_tokens is not None:
            self._charge(inside, uncached_tokens, now)

    def leave(self, request_id: str, has_run: bool, now: float) -> None:
        """It has ended. Tokens of one that never ran are given back. Unknown ids change nothing."""
        inside = self._inside.pop(request_id, None)
        if inside is None:
            return
        self._queue.cancel(request_id)
        self._limits.meter(inside.item.tenant, now).num_running -= 1
        if not has_run:
            self._charge(inside, 0, now)

    def _charge(self, inside: _Inside, tokens: float, now: float) -> None:
        """Correct what the tenant was charged."""
        meter = self._limits.meter(inside.item.tenant, now)
        meter.charge(tokens - inside.charged_tokens, now)
        inside.charged_tokens = tokens
