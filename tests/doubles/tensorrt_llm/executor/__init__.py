"""The layer below LLM, as far as its users meet it."""

from __future__ import annotations

from tensorrt_llm.executor.errors import RequestError
from tensorrt_llm.executor.request import LoRARequest
from tensorrt_llm.executor.result import CompletionOutput, IterationResult

__all__ = ["CompletionOutput", "IterationResult", "LoRARequest", "RequestError"]
