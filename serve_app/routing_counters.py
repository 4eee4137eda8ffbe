"""What one ingress's decisions were and what came of them, since it started."""

from __future__ import annotations

from collections import Counter

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

    def count(self, outcome: Outcome) -> None:
        self.num_by_reason[outcome.route.reason or "none"] += 1
        self.num_by_status[outcome.status] += 1
        self.num_retries += max(0, outcome.route.num_attempts - 1)
        if outcome.cached_tokens is not None:
            self.prompt_tokens += outcome.ask.num_tokens
            self.predicted_cached_tokens += outcome.route.predicted_cached_tokens
            self.cached_tokens += outcome.cached_tokens
