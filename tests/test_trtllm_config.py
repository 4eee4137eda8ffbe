"""Settings as arguments of TensorRT-LLM, for versions that know more or less of them."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from controllers.errors import SettingsError
from infra.settings import to_settings
from infra.settings_sections import ExecutorSettings
from serve_app.executors.trtllm_config import (
    engine_arguments,
    max_seq_len_of,
    warnings_of,
)
from serve_app.executors.trtllm_features import Features, probe, version_tuple
from serve_app.executors.trtllm_model import ModelFacts

FACTS = ModelFacts("model", vocab_size=100, max_positions=8192, eos_ids=(2,))


class Everything(frozenset[str]):
    """Knows all names."""

    def __contains__(self, name: object) -> bool:
        return True


def features(version: str = "1.3.0rc27", **changes: Any) -> Features:
    fields = ("llm_args", "kv_cache_fields", "scheduler_fields", "sampling_fields")
    names: dict[str, Any] = dict.fromkeys(fields, Everything())
    params = {"priority", "cache_salt", "kv_cache_retention_config"}
    return Features(
        version=version,
        **{
            **names,
            "generate_params": params,
            "llm_methods": frozenset(),
            "queue_policies": frozenset({"fcfs", "priority"}),
            **changes,
        },
    )


def settings(trtllm: dict[str, Any] | None = None, **executor: Any) -> ExecutorSettings:
    values = {"kind": "trtllm", **executor, "trtllm": trtllm or {}}
    return to_settings({"executor": values}).executor


def test_defaults() -> None:
    found = engine_arguments(settings(), "/m", FACTS, features())
    assert found.llm == {
        "model": "/m",
        "skip_tokenizer_init": True,
        "trust_remote_code": False,
        "dtype": "auto",
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "max_batch_size": 16,
        "max_num_tokens": 512,
        "max_seq_len": 8192,
        "max_input_len": 8191,
        "max_beam_width": 1,
        "enable_chunked_prefill": True,
        "enable_iter_perf_stats": True,
    }
    assert found.kv_cache == {
        "enable_block_reuse": True,
        "tokens_per_block": 32,
        "free_gpu_memory_fraction": 0.9,
        "secondary_offload_min_priority": 30,
        "enable_partial_reuse": False,
        "copy_on_partial_reuse": True,
        "event_buffer_max_size": 65536,
        "use_kv_cache_manager_v2": False,
    }
    assert found.scheduler == {
        "capacity_scheduler_policy": "GUARANTEED_NO_EVICT",
        "waiting_queue_policy": "priority",
    }
    assert (found.lora, found.left_out) == (None, [])


def test_everything() -> None:
    found = engine_arguments(
        settings(
            {
                "tensor_parallel_size": 4,
                "pipeline_parallel_size": 2,
                "enable_attention_dp": True,
                "dtype": "bfloat16",
                "max_tokens": 100_000,
                "host_cache_bytes": 10**10,
                "kv_cache_dtype": "fp8",
                "max_attention_window": [512, 4096],
                "enable_partial_reuse": True,
                "copy_on_partial_reuse": False,
                "event_buffer_max_size": 16384,
                "capacity_scheduler_policy": "MAX_UTILIZATION",
                "context_chunking_policy": "EQUAL_PROGRESS",
                "enable_chunked_prefill": False,
                "waiting_queue_policy": "fcfs",
                "enable_retention": False,
                "loras": {"sql": "/l/sql", "law": "/l/law"},
                "max_lora_rank": 16,
                "llm_args": {"stream_interval": 2},
            },
            max_seq_len=4096,
            block_size=64,
            host_offload_min_retention_priority=50,
        ),
        "/m",
        FACTS,
        features(),
    )
    assert found.llm["orchestrator_type"] == "ray"
    names = ("tensor_parallel_size", "pipeline_parallel_size", "enable_attention_dp", "dtype")
    assert [found.llm[name] for name in names] == [4, 2, True, "bfloat16"]
    assert (found.llm["enable_lora"], found.llm["stream_interval"]) == (True, 2)
    assert (found.llm["enable_chunked_prefill"], found.llm["max_seq_len"]) == (False, 4096)
    assert found.kv_cache == {
        "enable_block_reuse": True,
        "tokens_per_block": 64,
        "free_gpu_memory_fraction": 0.9,
        "secondary_offload_min_priority": 50,
        "enable_partial_reuse": True,
        "copy_on_partial_reuse": False,
        "event_buffer_max_size": 16384,
        "max_tokens": 100_000,
        "host_cache_size": 10**10,
        "dtype": "fp8",
        "max_attention_window": [512, 4096],
    }
    assert found.scheduler == {
        "capacity_scheduler_policy": "MAX_UTILIZATION",
        "context_chunking_policy": "EQUAL_PROGRESS",
    }
    assert found.lora == {
        "lora_dir": ["/l/sql", "/l/law"],
        "max_lora_rank": 16,
        "max_loras": 2,
        "max_cpu_loras": 2,
    }


def test_what_a_version_lacks_is_left_out_and_named() -> None:
    old = features(
        "1.2.1",
        llm_args=frozenset({"model", "skip_tokenizer_init"}),
        kv_cache_fields=frozenset({"enable_block_reuse", "tokens_per_block"}),
        scheduler_fields=frozenset({"capacity_scheduler_policy"}),
        generate_params=frozenset(),
    )
    found = engine_arguments(settings({"waiting_queue_policy": "priority"}), "/m", FACTS, old)
    assert found.llm == {"model": "/m", "skip_tokenizer_init": True}
    assert found.kv_cache == {"enable_block_reuse": True, "tokens_per_block": 32}
    assert "LLM.enable_iter_perf_stats" in found.left_out
    assert "KvCacheConfig.event_buffer_max_size" in found.left_out
    assert "SchedulerConfig.waiting_queue_policy" in found.left_out


def test_own_arguments_must_be_known() -> None:
    own = settings({"llm_args": {"no_such_thing": 1}})
    with pytest.raises(SettingsError, match="llm_args.no_such_thing: TensorRT-LLM 1.2.1 does not"):
        engine_arguments(own, "/m", FACTS, features("1.2.1", llm_args=frozenset({"model"})))


@pytest.mark.parametrize(
    ("version", "is_safe"),
    [
        ("1.2.1", False),
        ("1.3.0rc5", False),
        ("1.3.0rc6", True),
        ("1.3.0", True),
        ("1.4.0rc1", True),
    ],
)
def test_host_blocks_need_a_version_whose_events_survive_them(version: str, is_safe: bool) -> None:
    host = settings({"host_cache_bytes": 10**9})
    if is_safe:
        engine_arguments(host, "/m", FACTS, features(version))
        return
    with pytest.raises(SettingsError, match="host_cache_bytes: .*1.3.0rc6 or newer"):
        engine_arguments(host, "/m", FACTS, features(version))
    forced = settings({"host_cache_bytes": 10**9, "force_host_cache": True})
    assert engine_arguments(forced, "/m", FACTS, features(version)).kv_cache["host_cache_size"]


def test_an_offload_priority_that_has_no_effect() -> None:
    forced = {"host_cache_bytes": 10**9, "force_host_cache": True}
    own = settings(forced, host_offload_min_retention_priority=50)
    [warning] = warnings_of(own, features("1.2.1"))
    assert "host_offload_min_retention_priority 50 has no effect" in warning
    assert warnings_of(own, features("1.3.0rc27")) == []
    assert warnings_of(settings(forced), features("1.2.1")) == []


def test_the_longest_sequence() -> None:
    assert max_seq_len_of(settings(), FACTS) == 8192
    assert max_seq_len_of(settings(max_seq_len=100), FACTS) == 100
    unknown = ModelFacts("model", 100, None, ())
    assert max_seq_len_of(settings(max_seq_len=100), unknown) == 100
    with pytest.raises(SettingsError, match="max_seq_len: must be given"):
        max_seq_len_of(settings(), unknown)
    with pytest.raises(SettingsError, match="max_seq_len: 8193, the model allows 8192"):
        max_seq_len_of(settings(max_seq_len=8193), FACTS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.2.1", (1, 2, 1, 10_000)),
        ("1.3.0rc6", (1, 3, 0, 6)),
        ("1.3.0rc6.post1", (1, 3, 0, 6)),
        ("1.4.0.rc2", (1, 4, 0, 2)),
        ("2.0", (2, 0, 0, 10_000)),
        ("dev", (0, 0, 0, 0)),
    ],
)
def test_versions(text: str, expected: tuple[int, ...]) -> None:
    assert version_tuple(text) == expected


class Policy(str, Enum):
    FCFS = "fcfs"
    PRIORITY = "priority"


class OldScheduler(BaseModel):
    waiting_queue_policy: Literal["fcfs"] = "fcfs"


class NewScheduler(BaseModel):
    waiting_queue_policy: Policy = Policy.FCFS


class Llm:
    def generate_async(self, inputs: object, priority: float = 0.5) -> None: ...


@pytest.mark.parametrize(
    ("scheduler", "expected"), [(OldScheduler, False), (NewScheduler, True), (Llm, False)]
)
def test_priorities_need_a_queue_that_listens(scheduler: type, expected: bool) -> None:
    """Some candidates have the parameter and not yet the policy."""
    found = probe("1.3.0rc1", Llm, NewScheduler, NewScheduler, scheduler, NewScheduler)
    assert found.has_priority == expected


@pytest.mark.parametrize("version", ["1.1.0", "0.20.0", "dev"])
def test_versions_that_are_too_old(version: str) -> None:
    with pytest.raises(SettingsError, match=f"TensorRT-LLM {version} is too old: 1.2 or newer"):
        probe(version, object, object, object, object, object)
