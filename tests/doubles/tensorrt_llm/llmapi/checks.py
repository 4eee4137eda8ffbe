"""What LLM makes of its arguments, and refuses, before a request reaches the executor."""

from __future__ import annotations

from typing import Any

from tensorrt_llm.double.settings import current
from tensorrt_llm.double.shape import Shape
from tensorrt_llm.executor.errors import RequestError
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs
from tensorrt_llm.llmapi.tokenizer import ByteTokenizer
from tensorrt_llm.sampling_params import SamplingParams


def prepared(sampling: SamplingParams | None, tokenizer: ByteTokenizer | None) -> SamplingParams:
    """With an end_id. Raises TypeError, and ValueError when nothing says the end_id."""
    if sampling is not None and not isinstance(sampling, SamplingParams):
        raise TypeError(
            f"The sampling_params must be type SamplingParams or None, but got {type(sampling)}"
        )
    if sampling is None:
        sampling = SamplingParams()
    if sampling.end_id is None:
        if tokenizer is None:
            raise ValueError(
                "tokenizer is required to reset end_id if it is None, or you can explicitly "
                "specify the end_id for sampling_params"
            )
        sampling.end_id = tokenizer.eos_token_id
    return sampling


def prompt_of(inputs: Any, tokenizer: ByteTokenizer | None) -> tuple[str | None, list[int]]:
    """Text, if it was given as text, and token ids. Raises TypeError or ValueError."""
    if isinstance(inputs, dict):
        if "prompt_token_ids" in inputs:
            return None, list(inputs["prompt_token_ids"])
        inputs = inputs.get("prompt")
    if isinstance(inputs, list):
        return None, list(inputs)
    if not isinstance(inputs, str):
        raise TypeError(f"The inputs must be type str or list of int, but got {type(inputs)}")
    if tokenizer is None:
        raise ValueError("tokenizer is required to tokenize string prompt")
    return inputs, tokenizer.encode(inputs)


def check_arguments(
    args: TorchLlmArgs, shape: Shape, num_tokens: int, sampling: SamplingParams
) -> None:
    """Raises ValueError, or RequestError for a prompt that does not fit into one iteration."""
    if sampling.n > shape.max_batch_size:
        raise ValueError(
            f"SamplingParams.n ({sampling.n}) should not exceed max_batch_size "
            f"({shape.max_batch_size})"
        )
    num_padded = num_tokens / args.context_parallel_size
    if args.enable_chunked_prefill or num_padded <= shape.max_num_tokens:
        return
    if current().parsed.is_new:
        raise RequestError(
            f"The prompt length ({num_padded}) should not exceed max_num_tokens "
            f"({shape.max_num_tokens})"
        )
    raise RequestError(
        f"The sum of prompt length ({num_padded}), query length (0) should not exceed "
        f"max_num_tokens ({shape.max_num_tokens})"
    )
