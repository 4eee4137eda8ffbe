"""The fleet as one ingress process sees it, as plain JSON values (GET /fleet). Decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controllers.routing_table import RoutingTable
from controllers.worker_state import WorkerState
from infra.bookings_feed import BookingsCounters
from infra.table_feed import TableFeed
from serve_app.members import Member
from serve_app.routing_counters import RoutingCounters


def describe_feed(feed: TableFeed, ingress_id: str) -> dict[str, Any]:
    """What was read of the log, and how late it is."""
    counters = feed.counters
    return {
        "id": ingress_id,
        "is_connected": feed.is_connected(),
        "lag_ms": None if counters.lag_ms is None else round(counters.lag_ms, 1),
        "records_read": counters.num_records,
        "records_applied": counters.num_applied,
        "records_ignored": counters.num_ignored,
        "num_errors": counters.num_bad,
        "unknown_events": counters.num_unknown_events,
        "missing_batches": counters.num_gaps,
        "log_resets": counters.num_resets,
        "snapshots_asked": counters.num_snapshots_asked,
        "blocks": feed.table.num_blocks(),
    }


def describe_bookings(counters: BookingsCounters | None) -> dict[str, Any] | None:
    """What was read of other routers' bookings; None while this one is alone."""
    if counters is None:
        return None
    return {
        "lag_ms": None if counters.lag_ms is None else round(counters.lag_ms, 1),
        "records_read": counters.num_records,
        "num_errors": counters.num_bad,
        "log_resets": counters.num_resets,
    }


def describe_workers(
    table: RoutingTable, members: Mapping[str, Member], now: float
) -> list[dict[str, Any]]:
    """Members only, in order; a member never heard of is there, with a reason."""
    rows = []
    for uid, member in sorted(members.items()):
        for dp_rank, worker in enumerate(member.workers):
            state = table.workers.get(worker)
            unknown = _unknown_worker(uid, dp_rank, worker, member)
            rows.append(unknown if state is None else _worker(state, unknown, now))
    return rows


def describe_routing(counters: RoutingCounters) -> dict[str, Any]:
    """Decisions and what they were worth, since this process started."""
    return {
        "decisions": dict(sorted(counters.num_by_reason.items())),
        "outcomes": dict(sorted(counters.num_by_status.items())),
        "refused_by_tier": dict(sorted(counters.num_refused_by_tier.items())),
        "rate_limited_by_tenant": dict(sorted(counters.num_limited_by_tenant.items())),
        "retries": counters.num_retries,
        "prompt_tokens": counters.prompt_tokens,
        "predicted_cached_tokens": counters.predicted_cached_tokens,
        "cached_tokens": counters.cached_tokens,
    }


def _unknown_worker(uid: str, dp_rank: int, worker: str, member: Member) -> dict[str, Any]:
    return {
        "worker": worker,
        "replica": uid,
        "dp_rank": dp_rank,
        "epoch": member.epoch,
        "seq": None,
        "stale": True,
        "stale_reason": "not heard of yet",
        "heard_ms_ago": None,
        "num_blocks": member.info.num_blocks,
        "features": member.info.features,
        "resident_blocks": {},
        "resident_blocks_by_retention_priority": {},
        "num_active": 0,
        "num_queued": 0,
        "used_blocks": {},
        "hit_tokens": 0,
        "prompt_tokens": 0,
        "hit_rate": None,
    }


def _worker(state: WorkerState, unknown: dict[str, Any], now: float) -> dict[str, Any]:
    load = state.load
    by_class = sorted(state.num_by_retention_priority().items(), reverse=True)
    return {
        **unknown,
        "epoch": state.epoch,
        "seq": state.seq,
        "stale": state.is_stale or state.is_silent,
        "stale_reason": state.stale_reason or ("silent" if state.is_silent else None),
        "heard_ms_ago": round((now - state.heard_at) * 1e3, 1),
        "num_blocks": state.capacity or unknown["num_blocks"],
        "resident_blocks": state.num_by_medium(),
        "resident_blocks_by_retention_priority": {str(p): num for p, num in by_class},
        "num_active": load.num_active if load else 0,
        "num_queued": load.num_queued if load else 0,
        "used_blocks": load.used_blocks if load else {},
        "hit_tokens": state.hit_tokens,
        "prompt_tokens": state.prompt_tokens,
        "hit_rate": _ratio(state.hit_tokens, state.prompt_tokens),
        "missing_batches": state.num_gaps,
        "snapshots": state.num_snapshots,
    }


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None
