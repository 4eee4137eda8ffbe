"""What one ingress's decisions were and what came of them, since it started."""

from __future__ import annotations

from collections import Counter

from controllers.errors import Overloaded, RateLimited
from serve_app.fleet import Ask
from serve_app.outcome import Outcome


class RoutingCounters:
    """Since the start of this process."""

    def __init__(self) -> None:
        self.num_by_reason: Counter[str] = Counter()
        self.num_by_status: Counter[str] = Counter()
        self.prompt_tokens = 0
        self.predicted_cached_tokens = 0
        self.cached_tokens = 0
        self.num_retries = 0
        self.num_refused_by_tier: Counter[str] = Counter()  # by the fleet's bounds and the tier's
        self.num_limited_by_tenant: Counter[str] = Counter()  # by the tenant's own limits

    def count_refusal(self, ask: Ask, error: Overloaded) -> None:
        if isinstance(error, RateLimited):
            self.num_limited_by_tenant[ask.tenant] += 1
        else:
            self.num_refused_by_tier[ask.tier] += 1

    def count(self, outcome: Outcome) -> None:
        if outcome.status == "refused":
            self.num_refused_by_tier[outcome.ask.tier] += 1
        self.num_by_reason[outcome.route.reason or "none"] += 1
        self.num_by_status[outcome.status] += 1
        self.num_retries += max(0, outcome.route.num_attempts - 1)
        if outcome.cached_tokens is not None:
            self.prompt_tokens += outcome.ask.num_tokens
            self.predicted_cached_tokens += outcome.route.predicted_cached_tokens
            self.cached_tokens += outcome.cached_tokens
