"""Records of the topics other than `kv-events`: what routers, ingresses and autoscaling tell.

As in `events`, which has `SCHEMA`, fields are only ever added.
"""

from __future__ import annotations

import msgspec


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One record of `decisions`: what was predicted for a request and what happened."""

    schema: int
    ts_ms: int
    request_id: str
    model: str
    request_type: str
    tenant: str
    worker: str
    reason: str
    num_candidates: int
    prompt_tokens: int
    prompt_blocks: int
    predicted_cached_tokens: int
    best_cached_tokens: int  # the largest overlap any worker offered
    cached_tokens: int
    predicted_ttft_ms: float
    ttft_ms: float | None
    queue_ms: float | None
    total_ms: float
    output_tokens: int
    num_attempts: int
    status: str  # ok, cancelled, error
    # The prompt's last full block. `stored` events say what is before it, so this names all of it.
    prompt_hash: str | None = None
    system_tokens: int = 0  # of the system prompt
    history_tokens: int = 0  # of the system prompt and earlier turns
    num_pieces: int = 0  # of its prompt that were computed before the rest was sent


class ScalingDecision(msgspec.Struct, frozen=True, kw_only=True):
    """One record of `scaling`: how many replicas there should be, and what it was decided by.

    Rates and latencies are of the last window. `demand` is seconds of prefill that arrive in one
    second. Predictions are for `tier`, the one nearest to its SLO, with the old target and,
    prefixed `new_`, with the new one. What is not known is null.
    """

    schema: int
    ts_ms: int
    deployment: str
    num_replicas: int  # running
    target_replicas: int
    reason: str
    action: str = "hold"  # up, down, hold
    is_advisory: bool = False  # nothing was done
    old_target_replicas: int = 0
    min_replicas: int = 0
    max_replicas: int = 0
    num_known: int = 0  # replicas whose figures were used
    demand: float = 0.0
    growth: float = 1.0  # the demand was taken so many times as large, as it will be
    backlog_ms: float = 0.0
    requests_per_s: float = 0.0
    num_active: int = 0
    num_waiting: int = 0
    used_blocks: int = 0
    total_blocks: int = 0
    hit_rate: float | None = None
    reasked_tokens_per_s: float = 0.0  # evicted, and computed again while still wanted
    tier: str | None = None
    ttft_slo_ms: float | None = None
    itl_slo_ms: float | None = None
    ttft_missed_share: float | None = None  # measured
    itl_missed_share: float | None = None
    utilisation: float | None = None
    predicted_ttft_ms: float | None = None
    predicted_itl_ms: float | None = None
    new_utilisation: float | None = None
    new_predicted_ttft_ms: float | None = None
    new_predicted_itl_ms: float | None = None


class Booking(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request on its worker, as it is now: whoever missed what came before needs only this."""

    request_id: str
    worker: str
    state: str  # sent, first_token, done
    prefill_tokens: int  # to compute when it was sent
    num_blocks: int  # of its prompt
    rank: int = 0
    service_ms: float = (
        0.0  # time booked on the worker; what it took, once that is known to be less
    )


class BookingBatch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record of `bookings`: the bookings of one router that changed since its last record.

    With `num_parts` it is part `part` of a listing of all its open bookings instead: what is in
    none of the parts is over. `router` names one start of a router; `seq` counts its records: 0,
    1, 2 ... `num_open` is how many bookings it has under way.
    """

    schema: int
    ts_ms: int
    router: str
    seq: int
    num_open: int
    bookings: list[Booking]
    part: int = 0
    num_parts: int = 0


class PrefixUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record of `uses`: an ingress sent a request to a worker (again, after a failure), or its
    request ended. `seq` counts an ingress's records: 0, 1, 2 ...

    `hashes` has the 16 digits of each full block of the prompt, one after the other. Only the
    first record of a request says what its prompt is.
    """

    schema: int
    ts_ms: int
    router: str
    seq: int
    request_id: str
    state: str  # sent, done
    worker: str
    request_type: str = ""
    tenant: str = ""
    num_tokens: int = 0
    block_size: int = 0
    hashes: str = ""
    max_retention_priority: int = 100  # the tenant's
    is_kept: bool = True  # False: nothing of it will be asked for again
    num_cached_blocks: int | None = None  # what it found; None: nobody knows
