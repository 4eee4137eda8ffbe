"""Section `executor.trtllm`: what the TensorRT-LLM executor passes to the engine, and its laws.

Keys that other executors have as well (block size, batch, sequence length) are in `executor`. Which
of these arguments an installed version knows is found out when the engine is made; those that it
does not know are left out and named in the log.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from controllers.errors import SettingsError

Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]
NotEmpty = Annotated[str, Meta(min_length=1)]
Orchestrator = Literal["auto", "process", "mpi", "ray"]


class TrtllmSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times are how long the engine may take before it counts as dead."""

    tensor_parallel_size: Positive = 1
    pipeline_parallel_size: Positive = 1
    enable_attention_dp: bool = False  # each tensor-parallel rank is then a worker of its own
    # process: one GPU, the engine in the replica's process. mpi: workers of TensorRT-LLM's own on
    # this machine. ray: its workers are Ray actors. auto: process for one GPU, else ray.
    orchestrator: Orchestrator = "auto"
    dtype: NotEmpty = "auto"  # of weights and activations
    trust_remote_code: bool = False

    max_tokens: Positive | None = None  # of the KV cache; None: what free_gpu_memory_fraction gives
    free_gpu_memory_fraction: Annotated[float, Meta(gt=0, lt=1)] = 0.9  # of what weights leave free
    host_cache_bytes: Annotated[int, Meta(ge=0)] = 0  # second medium; 0: off
    # Host blocks and events together crash versions before 1.3.0rc6; for patched builds of these.
    force_host_cache: bool = False
    kv_cache_dtype: Literal["auto", "float16", "bfloat16", "float32", "fp8", "nvfp4", "int8"] = (
        "auto"
    )
    max_attention_window: Annotated[list[Positive], Meta(min_length=1)] | None = None  # by layer
    # Reuse of a part of a block saves less than one block's prefill, and the engine takes the block
    # out of its cache without telling: routers then believe in it until a request finds it gone.
    enable_partial_reuse: bool = False
    copy_on_partial_reuse: bool = True
    # Events that wait inside the engine to be read. One event may name hundreds of blocks; what
    # does not fit is lost, the oldest first.
    event_buffer_max_size: Positive = 65536

    capacity_scheduler_policy: Literal["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"] = (
        "GUARANTEED_NO_EVICT"
    )
    context_chunking_policy: Literal["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"] | None = None
    enable_chunked_prefill: bool = True
    # auto: by service rank where the version can order its queue, else as they come.
    waiting_queue_policy: Literal["auto", "fcfs", "priority"] = "auto"

    # Retention needs the V1 cache manager; False leaves the choice of the manager to the engine.
    enable_retention: bool = True
    require_retention: bool = False  # do not start when the engine does not keep what it is told

    loras: dict[NotEmpty, NotEmpty] = {}  # adapter name -> its folder
    max_lora_rank: Positive = 64

    # More arguments of tensorrt_llm.LLM, passed on as they are.
    llm_args: dict[str, Any] = {}

    poll_interval_s: Annotated[float, Meta(ge=0.001, le=0.1)] = 0.02  # of events, while it works
    start_timeout_s: Seconds = 120.0  # of the first request, after the model is loaded
    hang_timeout_s: Seconds = 60.0  # without any sign of life while there is work
    abort_timeout_s: Seconds = 30.0  # of one request, until the engine lets go of it
    close_timeout_s: Seconds = 30.0

    @property
    def num_gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def num_dp_ranks(self) -> int:
        return self.tensor_parallel_size if self.enable_attention_dp else 1

    @property
    def chosen_orchestrator(self) -> Literal["process", "mpi", "ray"]:
        if self.orchestrator == "auto":
            return "process" if self.num_gpus == 1 else "ray"
        return self.orchestrator


# Arguments that this program must decide itself, because its own working rests on them.
RESERVED_LLM_ARGS = frozenset(
    {
        "model",
        "tokenizer",
        "skip_tokenizer_init",
        "backend",
        "orchestrator_type",
        "kv_cache_config",
        "scheduler_config",
        "enable_iter_perf_stats",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "enable_attention_dp",
        "dtype",
        "trust_remote_code",
        "enable_chunked_prefill",
        "max_batch_size",
        "max_num_tokens",
        "max_seq_len",
        "max_beam_width",
        "enable_lora",
        "lora_config",
        "env_overrides",
    }
)


def check_trtllm(settings: TrtllmSettings, block_size: int, num_gpus: float | None) -> None:
    """Laws between the keys; `num_gpus` is executor.num_gpus. Raises SettingsError."""
    if block_size < 2 or block_size & (block_size - 1):
        raise SettingsError(
            f"executor.block_size: {block_size} is not a power of two above 1, which TensorRT-LLM "
            "needs"
        )
    if settings.chosen_orchestrator == "process" and settings.num_gpus > 1:
        raise SettingsError(
            "executor.trtllm.orchestrator: 'process' is for one GPU, tensor and pipeline parallel "
            f"sizes make {settings.num_gpus}; valid values: 'auto', 'mpi', 'ray'"
        )
    if settings.enable_attention_dp and settings.tensor_parallel_size == 1:
        raise SettingsError(
            "executor.trtllm.enable_attention_dp: needs a tensor_parallel_size above 1"
        )
    if settings.require_retention and not settings.enable_retention:
        raise SettingsError(
            "executor.trtllm.require_retention: true contradicts enable_retention false"
        )
    for name in settings.llm_args:
        if name in RESERVED_LLM_ARGS:
            raise SettingsError(
                f"executor.trtllm.llm_args.{name}: is set by its own key or by this program"
            )
    _check_gpus(settings, num_gpus)


def _check_gpus(settings: TrtllmSettings, num_gpus: float | None) -> None:
    """0 is allowed everywhere: whoever says so hands out GPUs by other means than Ray."""
    if not num_gpus:
        return
    orchestrator, needed = settings.chosen_orchestrator, settings.num_gpus
    if orchestrator == "ray":
        raise SettingsError(
            f"executor.num_gpus: {num_gpus:g} would be reserved beside the {needed} of the "
            "engine's own Ray workers; leave it out or set it to 0"
        )
    if orchestrator == "process" and num_gpus > 1:
        raise SettingsError(f"executor.num_gpus: {num_gpus:g} for an engine that uses one GPU")
    if orchestrator == "mpi" and num_gpus != needed:
        raise SettingsError(
            f"executor.num_gpus: {num_gpus:g} for an engine that uses {needed} GPUs; leave it out "
            f"or set it to {needed}"
        )
