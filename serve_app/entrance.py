"""Whom this ingress lets in, how long they may wait, and which gates are known to be full.

Settings and requests -> `controllers.admission` and `controllers.full_gates`, which decide. Knows
neither workers' caches nor what a request costs.
"""

from __future__ import annotations

from collections.abc import Callable

from controllers.admission import Admission, AdmissionSettings, bounds_of
from controllers.errors import Overloaded
from controllers.fair_queue import Bounds
from controllers.full_gates import FullGates
from controllers.placement import TableView
from controllers.rate_limits import TenantLimits
from controllers.waiting import Waiting
from infra.settings import Settings
from serve_app.fleet import Ask
from serve_app.outcome import Outcome


class Entrance:
    """`clock` in seconds."""

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._settings = settings
        self._num_gates = 1
        self._admission = Admission(self._bounds(), _limits_of(settings), settings.http.num_ingress)
        self._full_gates = FullGates()

    def configure(self, settings: Settings) -> None:
        """New limits and bounds; nobody inside is sent away."""
        self._settings = settings
        self._configure()

    def set_gates(self, num_gates: int) -> None:
        """How many replicas there are. While there is none, as many as before are waited for."""
        if num_gates not in (0, self._num_gates):
            self._num_gates = num_gates
            self._configure()

    def _configure(self) -> None:
        settings = self._settings
        self._admission.configure(
            self._bounds(), _limits_of(settings), self._clock(), settings.http.num_ingress
        )

    def _bounds(self) -> AdmissionSettings:
        executor = self._settings.executor
        gates = Bounds(executor.max_waiting_requests, executor.max_waiting_tokens)
        share = self._num_gates / self._settings.http.num_ingress
        return bounds_of(self._settings.admission, gates, share)

    @property
    def num_waiting(self) -> int:
        """Let in, and without a first token."""
        return self._admission.num_waiting

    def weight_of(self, tenant: str) -> float:
        return self._admission.weight_of(tenant)

    def enter(self, ask: Ask, table: TableView) -> dict[str, Overloaded]:
        """Let the request in; returns, by request id, what those hear that give way to it.

        Raises RateLimited or Overloaded, with nothing changed.
        """
        displaced = self._admission.enter(self._waiting(ask, table))
        return {
            item.request_id: self._overloaded(
                "too many requests wait, others come first", item.rank
            )
            for item in displaced
        }

    def started(self, outcome: Outcome) -> None:
        """Its first token came."""
        cached, ask = outcome.cached_tokens, outcome.ask
        uncached = None if cached is None else ask.num_tokens - cached
        self._admission.started(ask.request.request_id, uncached, self._clock())

    def left(self, outcome: Outcome) -> None:
        """It has ended, however."""
        request_id = outcome.ask.request.request_id
        self._admission.leave(request_id, outcome.has_started, self._clock())

    def gate_refused(self, outcome: Outcome) -> None:
        """The worker it was sent to did not take or keep it."""
        ask = outcome.ask
        self._full_gates.refused(
            outcome.route.worker, ask.request.service_rank, ask.tenant, self._clock()
        )

    def full_gates(self, ask: Ask, workers: set[str]) -> set[str]:
        """Workers that would refuse the request. Raises Overloaded if all would."""
        rank = ask.request.service_rank
        full = self._full_gates.among(workers, rank, ask.tenant, self._clock())
        if full and full == workers:
            raise self._overloaded("every worker has as much waiting as it may", rank)
        return full

    def max_ttft_ms(self, outcome: Outcome) -> float | None:
        """The most that its tier allows for the first token; None: any time is in time."""
        if outcome.has_started:
            return None
        return self._settings.tiers.rule(outcome.ask.tier).max_ttft_ms

    def ttft_left_ms(self, outcome: Outcome) -> float | None:
        """What is left of that."""
        max_ttft_ms = self.max_ttft_ms(outcome)
        return None if max_ttft_ms is None else max_ttft_ms - outcome.elapsed_ms()

    def _overloaded(self, message: str, rank: int) -> Overloaded:
        return Overloaded(message, self._admission.retry_after_s(rank, self._clock()))

    def _waiting(self, ask: Ask, table: TableView) -> Waiting:
        now, tokens = self._clock(), 0
        if self._admission.needs_tokens(ask.tenant, now):
            overlaps = table.overlap(ask.hashes).values()
            best = max((overlap.num_blocks for overlap in overlaps), default=0)
            tokens = ask.num_tokens - best * table.block_size
        return Waiting(
            request_id=ask.request.request_id,
            uncached_tokens=tokens,
            submitted_s=now,
            rank=ask.request.service_rank,
            tenant=ask.tenant,
            weight=self._admission.weight_of(ask.tenant),
        )


def _limits_of(settings: Settings) -> dict[str, TenantLimits]:
    return {name: tenant.limits for name, tenant in settings.tenants.items()}
