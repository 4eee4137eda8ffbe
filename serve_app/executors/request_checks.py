"""What every executor of ours refuses, before a request costs anything."""

from __future__ import annotations

import numpy as np

from controllers.blocks import as_token_array
from controllers.errors import InvalidRequest, PromptTooLong
from serve_app.executors.base import GenerateRequest


def check_request(request: GenerateRequest, vocab_size: int, max_seq_len: int) -> None:
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
    if request.dp_rank != 0:
        raise InvalidRequest("dp_rank", f"is {request.dp_rank}, this executor has only rank 0")
    if request.adapter is not None:
        raise InvalidRequest("model", f"this executor has no adapter {request.adapter!r}")
    for token_id in request.sampling.logit_bias:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                "logit_bias", f"token id {token_id} is not in the vocabulary of {vocab_size}"
            )
