"""The names of TensorRT-LLM that our adapter relies on, and how to read them off a package.

`describe` works on the real package and on the double alike; nothing is executed but constructors
of plain values.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType
from typing import Any

from infra.settings import to_settings
from serve_app.executors.trtllm_config import engine_arguments
from serve_app.executors.trtllm_features import (
    Features,
    field_names,
    parameter_names,
    version_tuple,
)
from serve_app.executors.trtllm_model import ModelFacts
from serve_app.executors.trtllm_sampling import sampling_arguments

Surface = dict[str, frozenset[str]]  # dotted name of a class or function -> names it takes

# Attributes that are read of results; they need no engine to be looked up on the classes.
COMPLETION_ATTRIBUTES = {"token_ids", "logprobs", "finish_reason", "stop_reason"}
RESULT_ATTRIBUTES = {"outputs", "finished", "abort", "result"}
ALWAYS = {
    "tensorrt_llm.LLM.get_kv_cache_events": {"timeout"},
    "tensorrt_llm.LLM.get_stats": {"timeout"},
    "tensorrt_llm.LLM.shutdown": set(),
    "tensorrt_llm.LLM.generate_async": {
        "inputs",
        "sampling_params",
        "streaming",
        "lora_request",
        "kv_cache_retention_config",
        "scheduling_params",
        "cache_salt",
    },
    "tensorrt_llm.scheduling_params.SchedulingParams": {
        "attention_dp_rank",
        "attention_dp_relax",
    },
    "tensorrt_llm.executor.LoRARequest": {"lora_name", "lora_int_id", "lora_path"},
}
# Looked for at start, and done without where they are missing.
OPTIONAL = {
    "tensorrt_llm.LLM.get_kv_cache_capacity",
    "tensorrt_llm.LLM._check_health",
    "tensorrt_llm.inputs.get_cache_salt_id",
}
# Arguments that versions are known to lack.
MAY_LACK = {"max_input_len", "orchestrator_type", "waiting_queue_policy"}


@dataclass(frozen=True)
class Everything:
    def __contains__(self, name: object) -> bool:
        return True


def used_by_adapter(is_new: bool) -> dict[str, set[str]]:
    """What the adapter may pass to a version, by asking it for everything."""
    everything: Any = Everything()
    features = Features(
        version="1.3.0rc27" if is_new else "1.2.1",
        llm_args=everything,
        kv_cache_fields=everything,
        scheduler_fields=everything,
        sampling_fields=everything,
        generate_params=everything,
        llm_methods=everything,
        queue_policies=everything,
    )
    trtllm = {
        "tensor_parallel_size": 2,
        "enable_attention_dp": True,
        "orchestrator": "ray",
        "max_tokens": 1,
        "host_cache_bytes": 1,
        "force_host_cache": True,
        "kv_cache_dtype": "fp8",
        "max_attention_window": [1],
        "context_chunking_policy": "EQUAL_PROGRESS",
        "loras": {"a": "b"},
    }
    settings = to_settings({"executor": {"kind": "trtllm", "trtllm": trtllm}}).executor
    facts = ModelFacts("m", 9, 99, (1,))
    arguments = engine_arguments(settings, "m", facts, features)
    return {
        **{name: set(names) for name, names in ALWAYS.items()},
        "tensorrt_llm.llmapi.TorchLlmArgs": set(arguments.llm) | {"lora_config"},
        "tensorrt_llm.llmapi.KvCacheConfig": set(arguments.kv_cache),
        "tensorrt_llm.llmapi.SchedulerConfig": set(arguments.scheduler),
        "tensorrt_llm.lora_helper.LoraConfig": set(arguments.lora or {}),
        "tensorrt_llm.SamplingParams": _sampling_names(),
    }


def _sampling_names() -> set[str]:
    from serve_app.executors.base import GenerateRequest, SamplingParams

    sampling = SamplingParams(
        max_tokens=9,
        min_tokens=1,
        min_p=0.1,
        seed=1,
        top_k=2,
        presence_penalty=1.0,
        frequency_penalty=1.0,
        logprobs=1,
        logit_bias={1: 1.0},
        stop_token_ids=(1,),
    )
    request = GenerateRequest(request_id="a", token_ids=b"", sampling=sampling)
    everything: Any = Everything()
    return set(sampling_arguments(request, 0, (1,), everything, lambda given: given))


def names_of(dotted: str) -> frozenset[str]:
    """Fields of a class, or parameters of a function. Raises AttributeError or ImportError."""
    return _names_or_none(resolve(dotted))


def resolve(dotted: str) -> Any:
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            found = getattr(found, name)
        return found
    raise ImportError(dotted)


def describe(package: ModuleType, skip: tuple[str, ...]) -> Surface:
    """Every public class and function that a package's modules define, with what it takes."""
    surface: Surface = {}
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not info.name.startswith(skip):
            _describe_module(importlib.import_module(info.name), surface)
    return surface


def _describe_module(module: ModuleType, surface: Surface) -> None:
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", "") != module.__name__:
            continue
        if inspect.isclass(value) or inspect.isfunction(value):
            surface[f"{module.__name__}.{name}"] = _names_or_none(value)


def _names_or_none(value: Callable[..., Any]) -> frozenset[str]:
    try:
        return field_names(value) if inspect.isclass(value) else parameter_names(value)
    except (TypeError, ValueError):
        return frozenset()


def is_new(version: str) -> bool:
    return version_tuple(version)[:2] >= (1, 3)


def check_retention_classes() -> None:
    """The binding's constructors take positions and timedeltas, and what is given comes back."""
    from tensorrt_llm.llmapi import KvCacheRetentionConfig

    kind = KvCacheRetentionConfig.TokenRangeRetentionConfig
    second = timedelta(seconds=1)
    config = KvCacheRetentionConfig([kind(0, None, 80, second)], 35, None)
    [given] = config.token_range_retention_configs
    assert (given.token_start, given.token_end, given.priority) == (0, None, 80)
    assert given.duration_ms == second
    assert (config.decode_retention_priority, config.decode_duration_ms) == (35, None)
