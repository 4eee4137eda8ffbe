"""What requests of a trace need of a cache, and how long they ask it to be kept."""

from __future__ import annotations

from controllers.retention import (
    Retention,
    RetentionPolicy,
    TokenRange,
    plan,
    ranges_of_blocks,
    rule_of,
)
from controllers.simulation.cache import AS_IS, Ask, Kept
from controllers.simulation.trace import TRACE_BLOCK, Request, Trace


class Asks:
    """`policy` None: nothing is asked. Raises InvalidRequest for a request type that the policy
    does not know."""

    def __init__(self, trace: Trace, policy: RetentionPolicy | None) -> None:
        self._trace = trace
        self._policy = policy
        for request_type in {request.request_type for request in trace.requests}:
            if policy is not None:
                rule_of(policy, request_type)

    def of(self, request: Request, planned: Retention | None = None) -> Ask:
        """Of a request, or a piece of one. `planned`: what is kept of it; None: by the policy's
        tiers."""
        size, per = self._trace.block_size, self._trace.blocks_per_trace_block
        num_prompt = -(-request.num_tokens // size)
        num_output = -(-request.output_tokens // size)
        return Ask(
            keys=[number * per for number in request.trace_blocks],
            sizes=[self._trace.num_blocks_of[number] for number in request.trace_blocks],
            num_more=num_prompt - request.num_blocks + num_output,
            kept=self._kept(request, planned),
        )

    def _kept(self, request: Request, planned: Retention | None) -> list[Kept] | None:
        if self._policy is None:
            return None
        if planned is None:
            planned = plan(self._policy, request.request_type, request.spans, TRACE_BLOCK)
        ranges = ranges_of_blocks(planned, request.num_tokens, TRACE_BLOCK)
        kept = [_kept_of(given) for given in ranges[: len(request.trace_blocks)]]
        return [*kept, _kept_rest(planned)]


def _kept_of(given: TokenRange | None) -> Kept:
    return AS_IS if given is None else (given.retention_priority, given.duration_s)


def _kept_rest(retention: Retention) -> Kept:
    return retention.decode_retention_priority, retention.decode_duration_s
