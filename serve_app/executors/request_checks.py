"""What every executor of ours refuses, before a request costs anything."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from controllers.blocks import as_token_array
from controllers.errors import InvalidRequest, PromptTooLong
from serve_app.executors.base import GenerateRequest


def check_request(
    request: GenerateRequest,
    vocab_size: int,
    max_seq_len: int,
    *,
    num_dp_ranks: int = 1,
    adapters: Collection[str] = (),
) -> None:
    """Raises InvalidRequest, or PromptTooLong, for a prompt that cannot run."""
    tokens = as_token_array(request.token_ids)
    if not len(tokens):
        raise InvalidRequest("prompt", "must have at least one token")
    if len(tokens) > max_seq_len - 1:
        raise PromptTooLong(
            "prompt",
            f"has {len(tokens)} tokens, at most {max_seq_len - 1} fit",
            code="context_length_exceeded",
        )
    if tokens.max() >= vocab_size:
        at = int(np.argmax(tokens >= vocab_size))
        raise InvalidRequest(
            f"prompt[{at}]", f"token id {tokens[at]} is not in the vocabulary of {vocab_size}"
        )
    if not 0 <= request.dp_rank < num_dp_ranks:
        raise InvalidRequest(
            "dp_rank", f"is {request.dp_rank}, this executor's last rank is {num_dp_ranks - 1}"
        )
    if not 0 <= request.num_resumed < min(len(tokens), max(1, request.sampling.max_tokens)):
        raise InvalidRequest("num_resumed", f"is {request.num_resumed}, not within the reply")
    if request.num_resumed and request.sampling.n != 1:
        raise InvalidRequest("num_resumed", "only a request for one sequence can be resumed")
    if request.adapter is not None and request.adapter not in adapters:
        raise InvalidRequest("model", f"this executor has no adapter {request.adapter!r}")
    for token_id in request.sampling.logit_bias:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                "logit_bias", f"token id {token_id} is not in the vocabulary of {vocab_size}"
            )
