"""Public names of the LLM API."""

from __future__ import annotations

from typing import Any

from tensorrt_llm.bindings.executor import KvCacheRetentionConfig, KvCacheTransferMode
from tensorrt_llm.disaggregated_params import DisaggregatedParams
from tensorrt_llm.executor import CompletionOutput, LoRARequest, RequestError
from tensorrt_llm.executor.result import RequestOutput
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs
from tensorrt_llm.llmapi.scheduler_config import (
    CapacitySchedulerPolicy,
    ContextChunkingPolicy,
    DynamicBatchConfig,
    WaitingQueuePolicy,
)
from tensorrt_llm.sampling_params import GuidedDecodingParams, SamplingParams
from tensorrt_llm.scheduling_params import SchedulingParams

__all__ = [
    "LLM",
    "CapacitySchedulerPolicy",
    "CompletionOutput",
    "ContextChunkingPolicy",
    "DisaggregatedParams",
    "DynamicBatchConfig",
    "GuidedDecodingParams",
    "KvCacheConfig",
    "KvCacheRetentionConfig",
    "KvCacheTransferMode",
    "LoRARequest",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "SchedulerConfig",
    "SchedulingParams",
    "TorchLlmArgs",
    "WaitingQueuePolicy",
]


def __getattr__(name: str) -> Any:
    """Names that differ between versions are looked up when they are used."""
    if name == "KvCacheConfig":
        from tensorrt_llm.llmapi.kv_cache_config import kv_cache_config_class

        return kv_cache_config_class()
    if name == "SchedulerConfig":
        from tensorrt_llm.llmapi.scheduler_config import scheduler_config_class

        return scheduler_config_class()
    if name == "LLM":
        from tensorrt_llm.llmapi.llm import llm_class

        return llm_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
