"""The arguments of LLM, strict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, field_validator

from tensorrt_llm.llmapi.kv_cache_config import CommonKvCacheConfig, kv_cache_config_class
from tensorrt_llm.llmapi.scheduler_config import SchedulerConfig, scheduler_config_class
from tensorrt_llm.lora_helper import LoraConfig

Positive = Annotated[int, Field(gt=0)]


class TorchLlmArgs(BaseModel):
    """What is not used is accepted only if the real one knows it."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    model: str | Path
    tokenizer: Any = None
    tokenizer_mode: Literal["auto", "slow"] = "auto"
    skip_tokenizer_init: bool = False
    trust_remote_code: bool = False
    revision: str | None = None
    tokenizer_revision: str | None = None
    backend: Literal["pytorch", "_autodeploy"] = "pytorch"
    dtype: str = "auto"
    tensor_parallel_size: Positive = 1
    pipeline_parallel_size: Positive = 1
    context_parallel_size: Positive = 1
    moe_tensor_parallel_size: int | None = None
    moe_expert_parallel_size: int | None = None
    moe_cluster_parallel_size: int | None = None
    gpus_per_node: int | None = None
    enable_attention_dp: bool = False
    load_format: Literal["auto", "dummy"] = "auto"
    enable_lora: bool = False
    lora_config: LoraConfig | None = None
    peft_cache_config: Any = None
    kv_cache_config: SerializeAsAny[CommonKvCacheConfig] = Field(
        default_factory=lambda: kv_cache_config_class()()
    )
    scheduler_config: SerializeAsAny[SchedulerConfig] = Field(
        default_factory=lambda: scheduler_config_class()()
    )
    enable_chunked_prefill: bool = False
    max_batch_size: int | None = 2048
    max_num_tokens: int | None = 8192
    max_seq_len: int | None = None
    max_beam_width: int | None = 1
    max_input_len: int | None = 1024
    orchestrator_type: Literal["rpc", "ray"] | None = None
    ray_placement_config: Any = None
    enable_iter_perf_stats: bool = False
    enable_iter_req_stats: bool = False
    iter_stats_max_iterations: int | None = None
    request_stats_max_iterations: int | None = None
    return_perf_metrics: bool = False
    perf_metrics_max_requests: int = 0
    env_overrides: dict[str, str] | None = None
    stream_interval: Positive = 1
    num_postprocess_workers: int = 0
    postprocess_tokenizer_dir: str | None = None
    guided_decoding_backend: Literal["xgrammar", "llguidance"] | None = None
    batched_logits_processor: Any = None
    cache_transceiver_config: Any = None
    kv_connector_config: Any = None
    speculative_config: Any = None
    sparse_attention_config: Any = None
    disable_overlap_scheduler: bool = False
    cuda_graph_config: Any = None
    torch_compile_config: Any = None
    attn_backend: str = "TRTLLM"
    moe_config: Any = None
    print_iter_log: bool = False

    @field_validator("kv_cache_config", mode="before")
    @classmethod
    def _cache_of_this_version(cls, value: Any) -> Any:
        return kv_cache_config_class()(**value) if isinstance(value, dict) else value

    @field_validator("scheduler_config", mode="before")
    @classmethod
    def _scheduler_of_this_version(cls, value: Any) -> Any:
        return scheduler_config_class()(**value) if isinstance(value, dict) else value
