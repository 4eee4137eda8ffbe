"""Our requests and settings of sampling -> TensorRT-LLM's arguments, and its outputs -> ours.

Plain values only: imports no class of the package.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec

from controllers.errors import InvalidRequest
from controllers.retention import Retention
from serve_app.executors.base import GenerateRequest, SamplingParams, TokenLogprob

# No token ends the sequence. `ignore_eos` would switch stop tokens off as well.
NO_END_ID = -1
# Neutral values, which a version that lacks the field may be spared.
NEUTRAL = {"min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_tokens": 0}
MAX_RANKS = 10  # service ranks that the engine's 0 ... 1 can tell apart


def sampling_arguments(
    request: GenerateRequest,
    index: int,
    eos_ids: Sequence[int],
    fields: Collection[str],
    to_bias: Callable[[Mapping[int, float]], object],
) -> dict[str, Any]:
    """For one sequence. `fields` are what the version knows; `to_bias` makes its tensor.

    The engine always runs one sequence a request: with more, its finish reasons and seeds are not
    ours. Raises InvalidRequest for an option that the version does not have.
    """
    sampling = request.sampling
    ends = () if sampling.ignore_eos else tuple(eos_ids)
    stops = dict.fromkeys((*ends[1:], *sampling.stop_token_ids))
    values: dict[str, Any] = {
        "max_tokens": sampling.max_tokens - request.num_resumed,
        "min_tokens": max(0, sampling.min_tokens - request.num_resumed),
        "end_id": ends[0] if ends else NO_END_ID,
        "pad_id": ends[0] if ends else 0,
        "stop_token_ids": list(stops) or None,
        "detokenize": False,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        **_choice(sampling, index),
    }
    if sampling.logprobs is not None:
        values["logprobs"] = max(1, sampling.logprobs)
    if sampling.logit_bias:
        values["embedding_bias"] = to_bias(sampling.logit_bias)
    return _for_version(values, fields)


def _choice(sampling: SamplingParams, index: int) -> dict[str, Any]:
    """Without a seed the engine would take the same one for every request."""
    if is_greedy(sampling):
        return {"top_k": 1}
    seed = secrets.randbits(62) if sampling.seed is None else sampling.seed + index
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or None,
        "seed": seed,
    }


def is_greedy(sampling: SamplingParams) -> bool:
    return sampling.temperature == 0 or sampling.top_k == 1


def _for_version(values: dict[str, Any], fields: Collection[str]) -> dict[str, Any]:
    kept = {}
    for name, value in values.items():
        is_neutral = value is None or value == NEUTRAL.get(name)
        if name in fields:
            if not is_neutral:
                kept[name] = value
        elif not is_neutral:
            field = "logit_bias" if name == "embedding_bias" else name
            raise InvalidRequest(field, "the installed TensorRT-LLM does not have this option")
    return kept


class RangeArguments(NamedTuple):
    """Arguments of TokenRangeRetentionConfig, in its order."""

    token_start: int
    token_end: int | None
    priority: int
    duration_ms: timedelta | None


class RetentionArguments(NamedTuple):
    """Arguments of KvCacheRetentionConfig."""

    ranges: tuple[RangeArguments, ...]
    decode_retention_priority: int
    decode_duration_ms: timedelta | None


def retention_arguments(
    retention: Retention, num_tokens: int, num_left: int = 0
) -> RetentionArguments | None:
    """None when the request asks for nothing but the engine's defaults.

    Both sides let the range that covers a block's first token decide. Ranges that begin behind the
    prompt cover nothing and are left out; one that ends there is open, as the engine wants it.
    `num_left`: nothing is said about so many first tokens.
    """
    if retention == Retention():
        return None
    given_ranges = sorted(retention.ranges, key=lambda given: given.start)
    ranges = [
        msgspec.structs.replace(given, start=max(given.start, num_left))
        for given in given_ranges
        if given.end is None or given.end > num_left
    ]
    return RetentionArguments(
        tuple(
            RangeArguments(
                given.start,
                None if given.end is None or given.end >= num_tokens else given.end,
                given.retention_priority,
                _duration(given.duration_s),
            )
            for given in ranges
            if given.start < num_tokens
        ),
        retention.decode_retention_priority,
        _duration(retention.decode_duration_s),
    )


def _duration(seconds: float | None) -> timedelta | None:
    """Whole milliseconds, at least one: the engine counts in those."""
    return None if seconds is None else timedelta(milliseconds=max(1, round(seconds * 1000)))


def engine_priority(service_rank: int) -> float:
    """0 ... 1, where 1 goes first; 0.5 is what a request gets that says nothing."""
    return 1.0 - min(max(service_rank, 0), MAX_RANKS) / MAX_RANKS


def logprobs_of(
    token_ids: Sequence[int], given: Sequence[Any], num_top: int
) -> tuple[TokenLogprob, ...]:
    """`given` has for each token a mapping of token id -> object with `logprob`, or a number."""
    found = []
    for token_id, entry in zip(token_ids, given, strict=False):
        if not isinstance(entry, Mapping):
            found.append(TokenLogprob(float(entry)))
            continue
        values = {token: _logprob(item) for token, item in entry.items()}
        top = sorted(values.items(), key=lambda pair: -pair[1])[:num_top]
        found.append(TokenLogprob(values.get(token_id, top[-1][1] if top else 0.0), tuple(top)))
    return tuple(found)


def _logprob(item: Any) -> float:
    return float(item.logprob if hasattr(item, "logprob") else item)
