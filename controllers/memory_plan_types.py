"""What a memory plan is made from and what it says. Sizes are bytes unless they say otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from controllers.model_shape import Split

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class PlanChoices:
    """`gpu_memory` is that of one GPU; `host_memory` is for the whole replica, all its GPUs.

    None: `max_seq_len` the model's positions, `sequence_length` 2,048 or `max_seq_len`,
    `free_gpu_memory_fraction` the recommended one, `window_shares` equal ones,
    `activation_reserve` the estimate.
    """

    kv_dtype: str
    weight_dtype: str
    gpu_memory: int
    host_memory: int = 0
    block_size: int = 32
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    max_seq_len: int | None = None
    sequence_length: int | None = None
    max_batch_size: int = 2048
    max_num_tokens: int = 8192
    free_gpu_memory_fraction: float | None = None
    window_shares: tuple[float, ...] | None = None
    activation_reserve: int | None = None

    @property
    def split(self) -> Split:
        return Split(self.tensor_parallel, self.pipeline_parallel)


@dataclass(frozen=True, slots=True)
class Pool:
    """The blocks of all layers with one attention window, on one GPU. `window` None: no window."""

    window: int | None
    num_layers: int
    kv_bytes_per_token: int
    gpu_blocks: int
    host_blocks: int


@dataclass(frozen=True, slots=True)
class ComparedDtype:
    """`times_tokens`: tokens that the cache holds, against a 16-bit one."""

    kv_dtype: str
    kv_bytes_per_token: int
    gpu_blocks: int
    gpu_tokens: int
    max_concurrent_sequences: int
    times_tokens: float
    needs: str


@dataclass(frozen=True, slots=True)
class Plan:
    """`kv_bytes_per_*` count every layer once; `*_per_gpu` what the GPU keeps that keeps most.

    `max_attention_window`: what the figures suppose to be set, None if no layer has a window.
    `gpu_blocks` and `host_blocks` are those of the pool with the largest window, the blocks that
    routing counts. A plan that does not fit says so in `error`; its counts are 0.
    """

    model: str
    num_parameters: int
    kv_dtype: str
    weight_dtype: str
    block_size: int
    tensor_parallel: int
    pipeline_parallel: int
    max_seq_len: int
    sequence_length: int
    gpu_memory_bytes: int
    weight_bytes: int
    weight_bytes_per_gpu: int
    weight_source: str
    activation_reserve_bytes: int
    free_bytes: int
    free_gpu_memory_fraction: float
    kv_cache_bytes: int
    kv_bytes_per_token: int
    kv_bytes_per_token_per_gpu: int
    kv_bytes_per_block: int
    kv_bytes_per_block_per_gpu: int
    kv_bytes_per_sequence_per_gpu: int
    gpu_blocks: int
    gpu_tokens: int
    host_blocks: int
    host_tokens: int
    host_cache_size_bytes: int
    max_concurrent_sequences: int
    max_concurrent_sequences_at_max_seq_len: int
    recommended_free_gpu_memory_fraction: float
    recommended_max_seq_len: int
    recommended_window_shares: list[float] | None
    max_attention_window: list[int] | None
    pools: list[Pool]
    comparison: list[ComparedDtype]
    warnings: list[str]
    assumptions: list[str]
    error: str | None
