"""A double of TensorRT-LLM's public Python API; see README.md beside this file."""

from __future__ import annotations

from typing import Any

from tensorrt_llm.sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    """Names that differ between versions are looked up when they are used."""
    if name == "__version__":
        from tensorrt_llm.double.settings import current

        return current().version
    if name == "LLM":
        from tensorrt_llm.llmapi.llm import llm_class

        return llm_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
