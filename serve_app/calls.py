"""What the chosen replica receives of a request: all that is left of it, or a piece of its prompt.

A piece is a request of its own for one token that nobody reads: it leaves the blocks of its tokens
cached. Knows no worker and does not decide what is sent where.
"""

from __future__ import annotations

import msgspec

from controllers.replica_meter import TierTarget
from controllers.retention import Retention
from controllers.service_tiers import TierRule
from serve_app.executors.base import GenerateRequest, SamplingParams
from serve_app.members import dp_rank_of
from serve_app.outcome import Outcome
from serve_app.wire import Call, encode_call

TOKEN_BYTES = 4
# It ends with its first token, whatever that is.
ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


def encoded_call(
    outcome: Outcome,
    rule: TierRule,
    retention: Retention,
    tenant_weight: float,
    ttft_left_ms: float | None,
    has_peers: bool,
) -> bytes:
    """For the worker that the request, or a piece of it, was placed on."""
    request = msgspec.structs.replace(
        outcome.current.request, dp_rank=dp_rank_of(outcome.route.worker), retention=retention
    )
    num_tokens = outcome.piece_tokens
    if num_tokens is not None:
        request = piece_of(request, num_tokens, outcome.num_pieces + 1)
    return encode_call(
        Call(
            request=request,
            uncached_tokens=outcome.uncached_tokens,
            first_token_timeout_s=rule.first_token_timeout_s,
            inter_token_timeout_s=rule.inter_token_timeout_s,
            tenant_weight=tenant_weight,
            max_wait_s=None if ttft_left_ms is None else ttft_left_ms / 1e3,
            target=TierTarget(outcome.ask.tier, rule.rank, rule.ttft_slo_ms, rule.itl_slo_ms),
            waited_s=outcome.attempt_s(),
            is_piece=num_tokens is not None,
            max_ahead_tokens=outcome.max_ahead_tokens,
            has_peers=has_peers,
        )
    )


def piece_of(request: GenerateRequest, num_tokens: int, number: int) -> GenerateRequest:
    """The first tokens of its prompt as a request of its own."""
    return msgspec.structs.replace(
        request,
        request_id=f"{request.request_id}/{number}",
        token_ids=request.token_ids[: num_tokens * TOKEN_BYTES],
        sampling=ONE_TOKEN,
        retention=cut(request.retention, num_tokens),
        num_resumed=0,
    )


def cut(retention: Retention, num_tokens: int) -> Retention:
    """What is said of these first tokens."""
    ranges = tuple(
        msgspec.structs.replace(piece, end=num_tokens)
        if piece.end is not None and piece.end > num_tokens
        else piece
        for piece in retention.ranges
        if piece.start < num_tokens
    )
    return msgspec.structs.replace(retention, ranges=ranges)
