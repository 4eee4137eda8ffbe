"""Model shape + choices -> memory plan of one replica: bytes, blocks, sequences, recommendations.

Pure. Estimates in it are listed in the plan's `assumptions`. Does not know files or command lines.
"""

from __future__ import annotations

from dataclasses import replace

from controllers.kv_pools import (
    PoolSizes,
    fitted_shares,
    group_layers,
    longest_sequence,
    size_pools,
)
from controllers.memory_budget import Budget
from controllers.memory_plan_advice import (
    DTYPE_NEEDS,
    assumptions,
    attention_windows,
    fit_error,
    warnings,
)
from controllers.memory_plan_checks import check_choices
from controllers.memory_plan_types import ComparedDtype, Plan, PlanChoices, Pool
from controllers.model_shape import AS_IS, ModelShape

SIXTEEN_BITS = {"fp16", "bf16"}


def plan(shape: ModelShape, choices: PlanChoices) -> Plan:
    """Raises SettingsError for a choice without meaning; what does not fit is in `Plan.error`."""
    check_choices(shape, choices)
    budget = Budget.of(shape, choices)
    cache = _size_cache(shape, budget, choices.kv_dtype)
    host_budget = choices.host_memory // choices.split.num_gpus
    host = size_pools(cache.groups, host_budget, choices.block_size, choices.window_shares)
    error = fit_error(shape, choices, budget, cache)
    per_token = shape.kv_bytes_per_token(choices.kv_dtype)
    per_token_per_gpu = shape.kv_bytes_per_token(choices.kv_dtype, choices.split)
    return Plan(
        model=shape.name,
        num_parameters=shape.num_params,
        kv_dtype=choices.kv_dtype,
        weight_dtype=_weight_name(shape, choices.weight_dtype),
        block_size=choices.block_size,
        tensor_parallel=choices.tensor_parallel,
        pipeline_parallel=choices.pipeline_parallel,
        max_seq_len=budget.max_seq_len,
        sequence_length=budget.sequence_length,
        gpu_memory_bytes=choices.gpu_memory,
        weight_bytes=budget.weights,
        weight_bytes_per_gpu=budget.weights_per_gpu,
        weight_source=_weight_source(shape, choices.weight_dtype),
        activation_reserve_bytes=budget.reserve,
        free_bytes=max(0, budget.free),
        free_gpu_memory_fraction=budget.fraction,
        kv_cache_bytes=budget.cache,
        kv_bytes_per_token=per_token,
        kv_bytes_per_token_per_gpu=per_token_per_gpu,
        kv_bytes_per_block=per_token * choices.block_size,
        kv_bytes_per_block_per_gpu=per_token_per_gpu * choices.block_size,
        kv_bytes_per_sequence_per_gpu=cache.sequence_bytes(budget.sequence_length),
        gpu_blocks=cache.num_blocks[0],
        gpu_tokens=cache.num_blocks[0] * choices.block_size,
        host_blocks=host.num_blocks[0],
        host_tokens=host.num_blocks[0] * choices.block_size,
        host_cache_size_bytes=host_budget,
        max_concurrent_sequences=cache.num_sequences(budget.sequence_length),
        max_concurrent_sequences_at_max_seq_len=cache.num_sequences(budget.max_seq_len),
        recommended_free_gpu_memory_fraction=budget.recommended_fraction,
        recommended_max_seq_len=longest_sequence(
            cache, min(budget.max_seq_len, shape.max_positions)
        ),
        recommended_window_shares=fitted_shares(
            cache.groups, budget.sequence_length, choices.block_size
        ),
        max_attention_window=attention_windows(shape, budget.max_seq_len),
        pools=_pools(cache, host),
        comparison=_compare(shape, budget),
        warnings=warnings(shape, choices, budget, cache) if error is None else [],
        assumptions=assumptions(shape, choices),
        error=error,
    )


def _size_cache(shape: ModelShape, budget: Budget, dtype: str) -> PoolSizes:
    choices = budget.choices
    groups = group_layers(shape, dtype, choices.split, budget.max_seq_len)
    return size_pools(groups, budget.cache, choices.block_size, choices.window_shares)


def _pools(cache: PoolSizes, host: PoolSizes) -> list[Pool]:
    return [
        Pool(group.window, group.num_layers, group.bytes_per_token, on_gpu, on_host)
        for group, on_gpu, on_host in zip(
            cache.groups, cache.num_blocks, host.num_blocks, strict=True
        )
    ]


def _compare(shape: ModelShape, budget: Budget) -> list[ComparedDtype]:
    chosen = budget.choices.kv_dtype
    sixteen = chosen if chosen in SIXTEEN_BITS else "fp16"
    dtypes = [*(["fp32"] if chosen == "fp32" else []), sixteen, "fp8"]
    dtypes += [] if shape.is_mla else ["int8", "nvfp4"]
    base = _size_cache(shape, budget, sixteen).num_blocks[0]
    return [_compared(shape, budget, dtype, base) for dtype in dtypes]


def _compared(shape: ModelShape, budget: Budget, dtype: str, base_blocks: int) -> ComparedDtype:
    cache = _size_cache(shape, budget, dtype)
    num_blocks = cache.num_blocks[0]
    return ComparedDtype(
        kv_dtype=dtype,
        kv_bytes_per_token=shape.kv_bytes_per_token(dtype),
        gpu_blocks=num_blocks,
        gpu_tokens=num_blocks * cache.block_size,
        max_concurrent_sequences=cache.num_sequences(budget.sequence_length),
        times_tokens=round(num_blocks / base_blocks, 2) if base_blocks else 0.0,
        needs=DTYPE_NEEDS.get(dtype, ""),
    )


def _weight_name(shape: ModelShape, dtype: str) -> str:
    return f"{AS_IS} ({shape.stored_weight_dtype})" if dtype == AS_IS else dtype


def _weight_source(shape: ModelShape, dtype: str) -> str:
    is_exact = dtype == AS_IS and shape.stored_weight_bytes is not None
    return "files" if is_exact else "parameters"


def with_window(shape: ModelShape, window: int) -> ModelShape:
    """The shape with another attention window in every layer; 0: none."""
    layers = tuple(replace(layer, window=window or None) for layer in shape.layers)
    return replace(shape, layers=layers)
