"""GPU memory - weights - activations = free; a fraction of what is free is the KV cache.

Owns the estimate of activations and the recommended fraction. Does not know blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from controllers.memory_plan_types import GIB, PlanChoices
from controllers.model_shape import ModelShape

DEFAULT_SEQUENCE_LENGTH = 2048
RUNTIME_RESERVE = GIB  # CUDA context, library handles, CUDA graphs
PARALLEL_RESERVE = GIB // 2  # communication buffers of several GPUs
LOGITS_BYTES = 6  # a 16-bit and a 32-bit copy
ACTIVATION_BYTES = 2
MAX_FRACTION = 0.95


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes of one GPU (`weights`: of the whole model), and the lengths they are shared out for."""

    choices: PlanChoices
    weights: int
    weights_per_gpu: int
    reserve: int
    max_seq_len: int
    sequence_length: int

    @classmethod
    def of(cls, shape: ModelShape, choices: PlanChoices) -> Budget:
        weights = shape.weight_bytes(choices.weight_dtype)
        reserve = choices.activation_reserve
        max_seq_len = choices.max_seq_len or shape.max_positions
        return cls(
            choices=choices,
            weights=weights,
            weights_per_gpu=math.ceil(weights / choices.split.num_gpus),
            reserve=activation_reserve(shape, choices) if reserve is None else reserve,
            max_seq_len=max_seq_len,
            sequence_length=choices.sequence_length or min(max_seq_len, DEFAULT_SEQUENCE_LENGTH),
        )

    @property
    def free(self) -> int:
        """After weights and activations; negative if they do not fit."""
        return self.choices.gpu_memory - self.weights_per_gpu - self.reserve

    @property
    def recommended_fraction(self) -> float:
        """Leaves 1 GiB for what an estimate misses, 2 % of a large GPU, 10 % of a small one.

        Whole percents, 50 to 95; 0 if nothing is free.
        """
        if self.free <= 0:
            return 0.0
        memory = self.choices.gpu_memory
        margin = min(max(GIB, memory // 50), memory // 10, self.free // 2)
        return min(MAX_FRACTION, (self.free - margin) * 100 // self.free / 100)

    @property
    def fraction(self) -> float:
        given = self.choices.free_gpu_memory_fraction
        return self.recommended_fraction if given is None else given

    @property
    def cache(self) -> int:
        return max(0, math.floor(self.free * self.fraction))


def activation_reserve(shape: ModelShape, choices: PlanChoices) -> int:
    """Estimate of what is neither weights nor cache while the largest iteration runs."""
    per_token = 6 * shape.hidden_size + math.ceil(3 * shape.ffn_size / choices.tensor_parallel)
    activations = choices.max_num_tokens * per_token * ACTIVATION_BYTES
    logits = choices.max_batch_size * shape.vocab_size * LOGITS_BYTES
    parallel = PARALLEL_RESERVE if choices.split.num_gpus > 1 else 0
    return RUNTIME_RESERVE + parallel + activations + logits
