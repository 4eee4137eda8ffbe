"""What TensorRT-LLM raises -> our errors, by the name of the class and the words of the message.

Knows the texts of its versions. A message that nothing here knows is the request's failure, not the
engine's: whether the engine lives is asked, not guessed.
"""

from __future__ import annotations

import re

from controllers.errors import (
    CachelaneError,
    ExecutorDead,
    ExecutorError,
    InvalidRequest,
    PromptTooLong,
)

_TOO_LONG = re.compile(
    r"prompt length.*should not exceed max_num_tokens"
    r"|(prompt|input|request|sequence) length.*(exceed|larger|greater|longer).*max"
    r"|default_max_tokens.*must be greater than 0"
    r"|exceeds? (the )?max(imum)?[_ ](seq|sequence|input)",
    re.I | re.S,
)
_DEAD = re.compile(
    r"LLM is shutting down|Event loop terminated|executor (is|has been|was) (shut ?down|terminated)"
    r"|worker.*(died|exited|terminated)|CUDA error|illegal memory access|proxy.*(dead|shut ?down)"
    r"|MPI.*abort|actor died",
    re.I | re.S,
)
_FULL = re.compile(r"no free blocks? (left|found)|can't allocate new blocks", re.I)


def submit_error(error: Exception) -> CachelaneError:
    """Raised when a request was handed over."""
    text = _text(error)
    if _TOO_LONG.search(text):
        return PromptTooLong("prompt", text, code="context_length_exceeded")
    if isinstance(error, (ValueError, TypeError)):
        return InvalidRequest("", f"the engine refuses the request: {text}")
    return run_error(error)


def run_error(error: BaseException) -> CachelaneError:
    """Raised while tokens were awaited."""
    text = _text(error)
    if _TOO_LONG.search(text):
        return PromptTooLong("prompt", text, code="context_length_exceeded")
    if _DEAD.search(text):
        return ExecutorDead(f"TensorRT-LLM died: {text}")
    if _FULL.search(text):
        return ExecutorError(f"the KV cache cannot hold the request: {text}")
    return ExecutorError(f"TensorRT-LLM failed: {text}")


def _text(error: BaseException) -> str:
    """One line; compiled code adds a stack trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= 500 else text[:497] + "..."
