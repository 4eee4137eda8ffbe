"""Settings -> arguments of TensorRT-LLM's classes, as plain values. Imports no such class.

What a version does not know is left out and named; what would be dangerous on it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from controllers.errors import SettingsError
from infra.settings_sections import ExecutorSettings
from infra.settings_trtllm import TrtllmSettings
from serve_app.executors.trtllm_features import Features, known
from serve_app.executors.trtllm_model import ModelFacts

DEFAULT_OFFLOAD_PRIORITY = 30  # the engine's own, where it does not listen to what it is told


@dataclass(frozen=True, slots=True)
class EngineArguments:
    """For LLM(...), KvCacheConfig(...) and SchedulerConfig(...). `left_out` by dotted names."""

    llm: dict[str, Any]
    kv_cache: dict[str, Any]
    scheduler: dict[str, Any]
    lora: dict[str, Any] | None
    left_out: list[str]


def engine_arguments(
    executor: ExecutorSettings, model_path: str, facts: ModelFacts, features: Features
) -> EngineArguments:
    """Raises SettingsError."""
    _check(executor, features)
    settings = executor.trtllm
    llm, no_llm = known(_llm(executor, model_path, facts), features.llm_args, "LLM")
    for name in settings.llm_args:
        if name not in features.llm_args:
            raise SettingsError(
                f"executor.trtllm.llm_args.{name}: TensorRT-LLM {features.version} does not know it"
            )
    kv_cache, no_kv = known(_kv_cache(executor), features.kv_cache_fields, "KvCacheConfig")
    scheduler, no_scheduler = known(
        _scheduler(settings, features), features.scheduler_fields, "SchedulerConfig"
    )
    return EngineArguments(
        llm={**llm, **settings.llm_args},
        kv_cache=kv_cache,
        scheduler=scheduler,
        lora=_lora(settings),
        left_out=no_llm + no_kv + no_scheduler,
    )


def max_seq_len_of(executor: ExecutorSettings, facts: ModelFacts) -> int:
    """Tokens of the longest sequence, before the cache's size is known. Raises SettingsError."""
    wanted = executor.max_seq_len
    if wanted is None and facts.max_positions is None:
        raise SettingsError(
            "executor.max_seq_len: must be given, the model's config.json does not say it"
        )
    if wanted is None:
        assert facts.max_positions is not None
        return facts.max_positions
    if facts.max_positions is not None and wanted > facts.max_positions:
        raise SettingsError(
            f"executor.max_seq_len: {wanted}, the model allows {facts.max_positions}"
        )
    return wanted


def _check(executor: ExecutorSettings, features: Features) -> None:
    settings = executor.trtllm
    if settings.host_cache_bytes and not (features.has_safe_updates or settings.force_host_cache):
        raise SettingsError(
            f"executor.trtllm.host_cache_bytes: with cache events it crashes TensorRT-LLM "
            f"{features.version}; use 1.3.0rc6 or newer, set it to 0, or set force_host_cache for "
            "a build that has the fix"
        )
    if settings.enable_attention_dp and "enable_attention_dp" not in features.llm_args:
        raise SettingsError(
            f"executor.trtllm.enable_attention_dp: TensorRT-LLM {features.version} has no such "
            "argument"
        )


def warnings_of(executor: ExecutorSettings, features: Features) -> list[str]:
    """What works differently from what the settings say, a sentence each."""
    found = []
    priority = executor.host_offload_min_retention_priority
    if (
        executor.trtllm.host_cache_bytes
        and priority != DEFAULT_OFFLOAD_PRIORITY
        and not features.has_offload_priority
    ):
        found.append(
            f"executor.host_offload_min_retention_priority {priority} has no effect on this "
            f"version ({features.version}): blocks of {DEFAULT_OFFLOAD_PRIORITY} and above move"
        )
    return found


def _llm(executor: ExecutorSettings, model_path: str, facts: ModelFacts) -> dict[str, Any]:
    settings = executor.trtllm
    max_seq_len = max_seq_len_of(executor, facts)
    return {
        "model": model_path,
        "skip_tokenizer_init": True,
        "trust_remote_code": settings.trust_remote_code,
        "dtype": settings.dtype,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "pipeline_parallel_size": settings.pipeline_parallel_size,
        "max_batch_size": executor.max_batch_size,
        "max_num_tokens": executor.max_batched_tokens,
        "max_seq_len": max_seq_len,
        "max_input_len": max_seq_len - 1,
        "max_beam_width": 1,
        "enable_chunked_prefill": settings.enable_chunked_prefill,
        "enable_iter_perf_stats": True,
        **_only_if(settings.enable_attention_dp, enable_attention_dp=True),
        **_only_if(settings.chosen_orchestrator == "ray", orchestrator_type="ray"),
        **_only_if(bool(settings.loras), enable_lora=True),
    }


def _kv_cache(executor: ExecutorSettings) -> dict[str, Any]:
    settings = executor.trtllm
    return {
        "enable_block_reuse": True,
        "tokens_per_block": executor.block_size,
        "free_gpu_memory_fraction": settings.free_gpu_memory_fraction,
        "secondary_offload_min_priority": executor.host_offload_min_retention_priority,
        "enable_partial_reuse": settings.enable_partial_reuse,
        "copy_on_partial_reuse": settings.copy_on_partial_reuse,
        "event_buffer_max_size": settings.event_buffer_max_size,
        **_only_if(settings.max_tokens is not None, max_tokens=settings.max_tokens),
        **_only_if(settings.host_cache_bytes > 0, host_cache_size=settings.host_cache_bytes),
        **_only_if(settings.kv_cache_dtype != "auto", dtype=settings.kv_cache_dtype),
        **_only_if(
            settings.max_attention_window is not None,
            max_attention_window=settings.max_attention_window,
        ),
        # The V2 manager ignores what a request says about retention, and is newer versions' choice.
        **_only_if(settings.enable_retention, use_kv_cache_manager_v2=False),
    }


def _scheduler(settings: TrtllmSettings, features: Features) -> dict[str, Any]:
    policy = settings.waiting_queue_policy
    if policy == "auto":
        policy = "priority" if features.has_priority else "fcfs"
    return {
        "capacity_scheduler_policy": settings.capacity_scheduler_policy,
        **_only_if(
            settings.context_chunking_policy is not None,
            context_chunking_policy=settings.context_chunking_policy,
        ),
        **_only_if(policy != "fcfs", waiting_queue_policy=policy),
    }


def _lora(settings: TrtllmSettings) -> dict[str, Any] | None:
    if not settings.loras:
        return None
    return {
        "lora_dir": list(settings.loras.values()),
        "max_lora_rank": settings.max_lora_rank,
        "max_loras": len(settings.loras),
        "max_cpu_loras": len(settings.loras),
    }


def _only_if(condition: bool, **arguments: Any) -> dict[str, Any]:
    return arguments if condition else {}
