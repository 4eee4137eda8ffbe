"""The sampling fields of a body -> SamplingParams within the ranges that executors trust."""

from __future__ import annotations

from collections.abc import Mapping

from controllers.errors import InvalidRequest
from serve_app.executors.base import SamplingParams
from serve_app.protocol import GenerationBody, shown

_SEED_MASK = 2**63 - 1  # seeds are not negative; sequence i adds i


def sampling_of(
    body: GenerationBody, max_tokens: int, vocab_size: int, num_top: int | None
) -> SamplingParams:
    """`max_tokens` is what the answer may have, already within the model. Raises InvalidRequest."""
    _check_min_tokens(body)
    top_p = _or(body.top_p, 1.0)
    return SamplingParams(
        max_tokens=max_tokens,
        # The limit of top_p towards 0 is the most likely token, which is what temperature 0 means.
        temperature=_or(body.temperature, 1.0) if top_p > 0 else 0.0,
        top_p=top_p if top_p > 0 else 1.0,
        top_k=min(max(body.top_k or 0, 0), vocab_size),
        min_p=_or(body.min_p, 0.0),
        seed=None if body.seed is None else body.seed & _SEED_MASK,
        stop_token_ids=_stop_token_ids(body.stop_token_ids, vocab_size),
        ignore_eos=bool(body.ignore_eos),
        logprobs=num_top,
        n=body.n or 1,
        logit_bias=_logit_bias(body.logit_bias, vocab_size),
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        min_tokens=min(body.min_tokens or 0, max_tokens),
    )


def _check_min_tokens(body: GenerationBody) -> None:
    wanted = getattr(body, "max_completion_tokens", None) or body.max_tokens
    if wanted is not None and (body.min_tokens or 0) > wanted:
        raise InvalidRequest("min_tokens", f"{body.min_tokens} is above the maximum of {wanted}")


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _stop_token_ids(ids: list[int] | None, vocab_size: int) -> tuple[int, ...]:
    for index, token_id in enumerate(ids or ()):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"stop_token_ids[{index}]",
                f"{shown(token_id)} is not in the vocabulary of {vocab_size}",
            )
    return tuple(dict.fromkeys(ids or ()))


def _logit_bias(bias: Mapping[str, float] | None, vocab_size: int) -> dict[int, float]:
    """JSON keys are strings; each must be a token id of the vocabulary."""
    return {_token_key(key, vocab_size): value for key, value in (bias or {}).items()}


def _token_key(key: str, vocab_size: int) -> int:
    is_id = key.isascii() and key.isdigit() and len(key) <= 10 and str(int(key)) == key
    if not is_id or int(key) >= vocab_size:
        raise InvalidRequest(
            "logit_bias",
            f"key {shown(key)} is not a token id of the vocabulary, 0 ... {vocab_size - 1}",
        )
    return int(key)
