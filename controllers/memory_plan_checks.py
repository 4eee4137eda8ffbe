"""Choices of a memory plan that mean nothing, named as the options they come from."""

from __future__ import annotations

from controllers.errors import SettingsError
from controllers.kv_pools import group_layers
from controllers.memory_plan_types import PlanChoices
from controllers.model_shape import AS_IS, KV_DTYPES, MLA_KV_DTYPES, WEIGHT_BITS, ModelShape

COUNTS = (
    "block_size",
    "tensor_parallel",
    "pipeline_parallel",
    "gpu_memory",
    "max_batch_size",
    "max_num_tokens",
)
OPTIONAL_COUNTS = ("max_seq_len", "sequence_length")


def check_choices(shape: ModelShape, choices: PlanChoices) -> None:
    """Raises SettingsError."""
    _check_dtypes(shape, choices)
    _check_counts(choices)
    _check_fractions(choices)
    stages, num_layers = choices.pipeline_parallel, len(shape.layers)
    if stages > num_layers:
        raise SettingsError(f"--pipeline-parallel: {stages} stages for {num_layers} layers")
    max_len = choices.max_seq_len or shape.max_positions
    if choices.sequence_length is not None and choices.sequence_length > max_len:
        raise SettingsError(
            f"--sequence-length: {choices.sequence_length} is more than max_seq_len, {max_len}"
        )
    _check_shares(shape, choices, max_len)


def _check_dtypes(shape: ModelShape, choices: PlanChoices) -> None:
    kv_dtypes = MLA_KV_DTYPES if shape.is_mla else KV_DTYPES
    if choices.kv_dtype not in kv_dtypes:
        why = " for a model with latent attention (MLA)" if shape.is_mla else ""
        raise SettingsError(
            f"--kv-dtype: {choices.kv_dtype!r} is none of {', '.join(kv_dtypes)}{why}"
        )
    if choices.weight_dtype not in {AS_IS, *WEIGHT_BITS}:
        known = ", ".join((AS_IS, *WEIGHT_BITS))
        raise SettingsError(f"--weight-dtype: {choices.weight_dtype!r} is none of {known}")


def _check_counts(choices: PlanChoices) -> None:
    for name in (*COUNTS, *OPTIONAL_COUNTS):
        value = getattr(choices, name)
        if (value is not None or name in COUNTS) and value < 1:
            raise SettingsError(f"--{name.replace('_', '-')}: {value} is less than 1")


def _check_fractions(choices: PlanChoices) -> None:
    fraction = choices.free_gpu_memory_fraction
    if fraction is not None and not 0 < fraction < 1:
        raise SettingsError(f"--free-gpu-memory-fraction: {fraction} is not between 0 and 1")


def _check_shares(shape: ModelShape, choices: PlanChoices, max_seq_len: int) -> None:
    shares = choices.window_shares
    if shares is None:
        return
    groups = group_layers(shape, choices.kv_dtype, choices.split, max_seq_len)
    if len(shares) != len(groups):
        raise SettingsError(f"--window-shares: {len(shares)} for {len(groups)} attention windows")
    if not all(share > 0 for share in shares) or abs(sum(shares) - 1) > 1e-9:
        raise SettingsError(f"--window-shares: {sum(shares):g} in all, not positive parts of 1")
