"""Measures on one replica what the autoscaling policy decides by.

Owns the requests that wait for a first token, windows of rates and latencies, and the replica's own
timing curve. Does not know the cache's content (`controllers.cache_watch`), threads or Ray. Times
are in seconds, monotonic.

1. A request's prefill counts whole until its first token.
2. A request that has waited longer than its SLO counts as missed before its first token: a stuck
   replica has no latencies to show.
3. Latencies of a replica's first seconds are left out; its work is not.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from controllers.autoscaling_report import TierReport
from controllers.autoscaling_settings import AutoscalingSettings
from controllers.cost_model import CostModel
from controllers.events import Load
from controllers.sliding import SlidingSums


class TierTarget(msgspec.Struct, frozen=True, array_like=True):
    """A request's tier and what it promises; travels with the request, so that a changed target
    counts from the next request on."""

    tier: str = "standard"
    rank: int = 1
    ttft_slo_ms: float = 5000.0
    itl_slo_ms: float = 200.0


@dataclass
class _Request:
    target: TierTarget
    prefill_ms: float
    arrived_at: float
    pace_ms: float
    is_piece: bool = False
    first_at: float | None = None


class ReplicaMeter:
    """`num_ranks` data-parallel ranks share the replica's work evenly."""

    def __init__(self, max_batched_tokens: int, num_ranks: int, now: float) -> None:
        self._model = CostModel(max_batched_tokens)
        self._num_ranks = num_ranks
        self._ms_per_token = self._best_pace_ms()
        self._started_at = now
        self._loads: dict[int, Load] = {}
        self._requests: dict[str, _Request] = {}
        self._settings = AutoscalingSettings()
        self._targets: dict[str, TierTarget] = {}  # the newest of each tier
        self._sums = SlidingSums(self._settings.window_s)

    def configure(self, settings: AutoscalingSettings) -> None:
        """Windows start anew only if their length changed."""
        if self._settings.window_s != settings.window_s:
            self._sums = SlidingSums(settings.window_s)
        self._settings = settings

    def arrived(
        self,
        request_id: str,
        target: TierTarget,
        uncached: int,
        now: float,
        *,
        waited_s: float = 0.0,
        is_piece: bool = False,
    ) -> None:
        """A request with this many prompt tokens to compute came to the replica's gate.

        `waited_s` before, which is part of its time to first token. A piece of a prompt is work of
        the request that follows it: neither a request nor anybody's latency.
        """
        self._targets[target.tier] = target
        alone_ms = float(self._model.prefill_ms(max(0, uncached), 0.0, 1.0))
        pace_ms = max(0, uncached) * self._ms_per_token
        request = _Request(target, alone_ms, now - waited_s, pace_ms, is_piece)
        self._requests[request_id] = request
        self._note_work(request, 1.0, now)

    def handed_back(self, request_id: str, now: float) -> None:
        """It was not started here and goes to another replica, whose work it is."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._note_work(request, -1.0, now)

    def first_token(self, request_id: str, now: float) -> None:
        request = self._requests.get(request_id)
        if request is None or request.first_at is not None:
            return
        request.first_at = now
        if not request.is_piece:
            self._note_latency(request, "ttft", _is_late(request, now), now)

    def ended(self, request_id: str, num_tokens: int, now: float) -> None:
        """`num_tokens` came for each of its sequences; 0 or 1 tell nothing of the time between."""
        request = self._requests.pop(request_id, None)
        if request is None or request.first_at is None or num_tokens < 2:
            return
        mean_ms = (now - request.first_at) * 1e3 / (num_tokens - 1)
        self._note_latency(request, "itl", mean_ms > request.target.itl_slo_ms, now)

    def on_load(self, dp_rank: int, load: Load, now: float) -> None:
        """A rank's own figures; its counters grow since the engine's start."""
        before = self._loads.get(dp_rank)
        self._loads[dp_rank] = load
        total = load.total_blocks.get("gpu", 0)
        for iteration in load.iterations:
            self._model.observe(str(dp_rank), iteration, total)
            if iteration.new_tokens > 0:
                self._sums.add("busy_ms", iteration.ms * iteration.count, now)
        self._ms_per_token = self._best_pace_ms()
        if before is not None and load.prompt_tokens >= before.prompt_tokens:
            self._sums.add("prompt", load.prompt_tokens - before.prompt_tokens, now)
            self._sums.add("hit", load.hit_tokens - before.hit_tokens, now)

    def on_reasked(self, num_tokens: int, now: float) -> None:
        """So many tokens were computed again that had been evicted while they were wanted."""
        self._sums.add("reasked", num_tokens, now)

    def _best_pace_ms(self) -> float:
        """For one token of a full iteration."""
        limit = self._model.max_batched_tokens
        return float(self._model.prefill_ms(limit, 0.0, 1.0)) / limit

    def figures(self, num_gate: int, now: float) -> dict[str, float]:
        """The fields of a ReplicaReport that this file owns; `num_gate` requests wait in front of
        the engine."""
        loads = list(self._loads.values())
        used = sum(load.used_blocks.get("gpu", 0) for load in loads)
        total = sum(load.total_blocks.get("gpu", 0) for load in loads)
        return {
            "uptime_s": now - self._started_at,
            "prefill_busy": min(1.0, self._sums.per_s("busy_ms", now) / 1e3 / self._num_ranks),
            "num_active": sum(load.num_active for load in loads),
            "num_waiting": num_gate + sum(load.num_queued for load in loads),
            "used_blocks": used,
            "total_blocks": total,
            "cached_blocks": sum(load.cached_blocks.get("gpu", 0) for load in loads),
            "idle_decode_ms": float(self._model.decode_ms(0.0, 1.0)),
            "decode_ms": float(self._model.decode_ms(used / total if total else 0.0, 1.0)),
            "prefill_ms_per_token": self._ms_per_token,
            "prompt_tokens_per_s": self._sums.per_s("prompt", now),
            "hit_tokens_per_s": max(0.0, self._sums.per_s("hit", now)),
            "reasked_tokens_per_s": self._sums.per_s("reasked", now),
        }

    def tiers(self, now: float) -> dict[str, TierReport]:
        """Tiers that have work, or had some in the window."""
        waiting: dict[str, list[_Request]] = {}
        for request in list(self._requests.values()):
            waiting.setdefault(request.target.tier, [])
            if request.first_at is None:
                waiting[request.target.tier].append(request)
        seen = {key[0] for key in self._sums.names(now) if isinstance(key, tuple)}
        names = sorted(name for name in seen | waiting.keys() if name in self._targets)
        return {name: self._tier(name, waiting.get(name, []), now) for name in names}

    def _tier(self, name: str, waiting: list[_Request], now: float) -> TierReport:
        target = self._targets[name]

        def total(what: str) -> float:
            # What is taken back may be remembered for a moment longer than what was noted.
            return max(0.0, self._sums.total((name, what), now))

        num = total("requests")
        num_late = sum(_is_late(request, now) for request in waiting)
        num_late = 0 if self._is_cold(now) else num_late
        return TierReport(
            rank=target.rank,
            ttft_slo_ms=target.ttft_slo_ms,
            itl_slo_ms=target.itl_slo_ms,
            backlog_ms=sum(request.prefill_ms for request in waiting) / self._num_ranks,
            requests_per_s=num / self._sums.span_s(now),
            prefill_ms_per_s=total("pace_ms") / self._sums.span_s(now) / self._num_ranks,
            service_ms=total("alone_ms") / num if num else 0.0,
            service_ms2=total("alone_ms2") / num if num else 0.0,
            num_ttft=total("ttft") + num_late,
            num_ttft_missed=total("ttft_missed") + num_late,
            num_itl=total("itl"),
            num_itl_missed=total("itl_missed"),
        )

    def _note_work(self, request: _Request, sign: float, now: float) -> None:
        alone_ms = request.prefill_ms
        for name, amount in (
            ("requests", 0.0 if request.is_piece else 1.0),
            ("pace_ms", request.pace_ms),
            ("alone_ms", alone_ms),
            ("alone_ms2", alone_ms * alone_ms),
        ):
            self._sums.add((request.target.tier, name), sign * amount, now)

    def _note_latency(self, request: _Request, kind: str, is_missed: bool, now: float) -> None:
        if not self._is_cold(request.arrived_at):
            self._sums.add((request.target.tier, kind), 1.0, now)
            self._sums.add((request.target.tier, f"{kind}_missed"), float(is_missed), now)

    def _is_cold(self, at: float) -> bool:
        return at - self._started_at < self._settings.cold_start_s


def _is_late(request: _Request, now: float) -> bool:
    """Its first token comes, or may come, later than its tier promises."""
    return not request.is_piece and (now - request.arrived_at) * 1e3 > request.target.ttft_slo_ms
