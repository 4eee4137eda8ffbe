"""The KV cache as an argument of LLM: one model for each generation of fields, all strict."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tensorrt_llm.double.settings import current

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(gt=0)]
CacheType = Literal["auto", "float16", "bfloat16", "float32", "fp8", "nvfp4"]


class CommonKvCacheConfig(BaseModel):
    """Fields of every version."""

    model_config = ConfigDict(extra="forbid")
    enable_block_reuse: bool = True
    max_tokens: int | None = None
    max_attention_window: Annotated[list[Positive], Field(min_length=1)] | None = None
    sink_token_length: int | None = None
    free_gpu_memory_fraction: Fraction | None = 0.9
    host_cache_size: int | None = None  # bytes
    cross_kv_cache_fraction: float | None = None
    secondary_offload_min_priority: int | None = None
    event_buffer_max_size: int = 0
    attention_dp_events_gather_period_ms: int = 5
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    use_uvm: bool = False
    max_gpu_total_bytes: Annotated[int, Field(ge=0)] = 0
    dtype: str = "auto"
    mamba_ssm_cache_dtype: Literal["auto", "float16", "bfloat16", "float32"] = "auto"
    tokens_per_block: int = 32
    max_util_for_resume: Fraction = 0.95


class KvCacheConfig12(CommonKvCacheConfig):
    onboard_blocks: bool = True
    use_kv_cache_manager_v2: bool = False


class KVEventsConfig(BaseModel):
    """Publishing by the engine itself. The newest versions refuse it at start-up."""

    model_config = ConfigDict(extra="forbid")
    enable_kv_cache_events: bool = False
    publisher: Literal["null", "zmq"] | None = None
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""


class NewKvCacheConfig(CommonKvCacheConfig):
    """Common to 1.3 and later."""

    kv_cache_event_hash_algo: Literal["auto", "v1_block_key", "v2_sha256", "v2_sha256_64"] = "auto"
    use_kv_cache_manager_v2: bool | Literal["auto"] = "auto"
    iteration_stats_interval: int = 1
    block_reuse_policy: Literal["all_reusable", "per_request", "per_conversation"] = "all_reusable"
    block_reuse_config: Any = None
    enable_kv_pool_rebalance: bool = False
    enable_swa_scratch_reuse: bool = False
    pool_ratio: list[float] | None = None
    avg_seq_len: int | None = None


class KvCacheConfig13(NewKvCacheConfig):
    """1.3 candidates before the 27th."""

    onboard_blocks: bool = True


class KvCacheConfig13rc27(NewKvCacheConfig):
    kv_events_config: KVEventsConfig | None = None
    disk_cache_size: int | None = None
    disk_cache_path: str | None = None


class KvCacheConfig14(KvCacheConfig13rc27):
    cold_tier_offload_min_priority: int | None = None
    disk_io_threads: int | None = None
    disk_keep_copy_after_restore: bool = False
    disk_write_through: bool = False
    disk_protected_copy_fraction: float | None = None
    disk_prefetch_num_reqs: int = 0
    host_cache_bind_to_gpu_numa_node: bool = False


def kv_cache_config_class() -> type[CommonKvCacheConfig]:
    version = current().parsed
    if version.is_newest:
        return KvCacheConfig14
    if not version.is_new:
        return KvCacheConfig12
    return KvCacheConfig13 if version.has_onboard_blocks else KvCacheConfig13rc27
