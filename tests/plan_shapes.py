"""Model shapes for tests of the memory plan, small enough to work out by hand."""

from __future__ import annotations

from typing import Any

from controllers.memory_plan_types import GIB, PlanChoices
from controllers.model_shape import KvLayer, ModelShape

MIB = 1024**2
RESERVE = 896 * MIB


def shape(layers: list[KvLayer] | None = None, **changes: Any) -> ModelShape:
    """Four layers of 2 key/value heads of 16: 4 * 2 * 2 * 16 = 256 elements a token, 512 bytes."""
    values: dict[str, Any] = {
        "name": "small",
        "layers": tuple(layers or [KvLayer(2, 16, 16)] * 4),
        "num_heads": 4,
        "hidden_size": 64,
        "ffn_size": 128,
        "vocab_size": 1000,
        "max_positions": 4096,
        "num_linear_params": 1_000_000,
        "num_other_params": 200_000,
        "stored_weight_dtype": "fp16",
        **changes,
    }
    return ModelShape(**values)


def choices(**changes: Any) -> PlanChoices:
    """Half of what is free: with `shape` the cache is 128 MiB - 1.2 MB = 133,017,728 bytes."""
    values: dict[str, Any] = {
        "kv_dtype": "fp16",
        "weight_dtype": "as-is",
        "gpu_memory": GIB + 128 * MIB,
        "activation_reserve": RESERVE,
        "free_gpu_memory_fraction": 0.5,
        **changes,
    }
    return PlanChoices(**values)
