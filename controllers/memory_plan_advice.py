"""The words of a memory plan: warnings, assumptions, the error of what does not fit.

Knows no file and no command line, apart from the names of the options it advises.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from controllers.kv_pools import (
    LayerGroup,
    PoolSizes,
    fitted_shares,
    group_layers,
    longest_sequence,
    size_pools,
)
from controllers.memory_budget import Budget
from controllers.memory_plan_types import GIB, PlanChoices
from controllers.model_shape import AS_IS, NVFP4_BLOCK_LEN, WEIGHT_BITS, ModelShape

SMALLER_WEIGHTS = ("fp8", "int4", "nvfp4")
PARALLEL_STEPS = (2, 4, 8, 16)
WASTE_RATIO = 1.25  # less is not worth a word
DTYPE_NEEDS = {
    "fp8": "Ada, Hopper or newer",
    "int8": "TensorRT backend, calibration",
    "nvfp4": "Blackwell, calibration",
}


def gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"


def attention_windows(shape: ModelShape, max_seq_len: int) -> list[int] | None:
    """`max_attention_window` of TensorRT-LLM, which repeats the list over the layers.

    None: no layer has a window that a sequence outgrows.
    """
    windows = [min(layer.window or max_seq_len, max_seq_len) for layer in shape.layers]
    if all(window == max_seq_len for window in windows):
        return None
    return next(
        windows[:period]
        for period in range(1, len(windows) + 1)
        if all(window == windows[i % period] for i, window in enumerate(windows))
    )


def fit_error(
    shape: ModelShape, choices: PlanChoices, budget: Budget, cache: PoolSizes
) -> str | None:
    """One line with what would fit instead; None if there is room for a block of each pool."""
    if min(cache.num_blocks) >= 1:
        return None
    need = f"weights take {gib(budget.weights_per_gpu)} and activations {gib(budget.reserve)}"
    where = f"of a GPU with {gib(choices.gpu_memory)}"
    rest = f"; {gib(budget.free)} are left, not one block" if budget.free > 0 else ""
    fitting = list(_what_fits(shape, choices, budget))
    advice = f"fits with {' or '.join(fitting)}" if fitting else "no option here makes it fit"
    return f"{shape.name} does not fit: {need} {where}{rest}; {advice}"


def _what_fits(shape: ModelShape, choices: PlanChoices, budget: Budget) -> Iterator[str]:
    for dtype in SMALLER_WEIGHTS:
        other = replace(choices, weight_dtype=dtype)
        if shape.weight_bytes(dtype) < budget.weights and _has_room(shape, other):
            yield f"--weight-dtype {dtype} ({gib(Budget.of(shape, other).weights_per_gpu)})"
    for step in PARALLEL_STEPS:
        other = replace(choices, tensor_parallel=choices.tensor_parallel * step)
        if shape.num_heads % other.tensor_parallel == 0 and _has_room(shape, other):
            per_gpu = gib(Budget.of(shape, other).weights_per_gpu)
            yield f"--tensor-parallel {other.tensor_parallel} ({per_gpu} a GPU)"
            return


def _has_room(shape: ModelShape, choices: PlanChoices) -> bool:
    """For one sequence of the length that the plan is for."""
    budget = Budget.of(shape, choices)
    groups = group_layers(shape, choices.kv_dtype, choices.split, budget.max_seq_len)
    cache = size_pools(groups, budget.cache, choices.block_size, choices.window_shares)
    return cache.num_sequences(budget.sequence_length) >= 1


def warnings(
    shape: ModelShape, choices: PlanChoices, budget: Budget, cache: PoolSizes
) -> list[str]:
    """Of a plan that fits."""
    return [
        *_length_warnings(shape, budget, cache),
        *_block_warnings(choices, cache),
        *_window_warnings(shape, choices, budget, cache),
        *_parallel_warnings(shape, choices),
        *_fraction_warnings(budget),
        *_dtype_warnings(shape, choices),
    ]


def _length_warnings(shape: ModelShape, budget: Budget, cache: PoolSizes) -> Iterator[str]:
    asked = budget.max_seq_len
    if asked > shape.max_positions:
        yield f"max_seq_len {asked} is more than the model's {shape.max_positions} positions"
    longest = longest_sequence(cache, min(asked, shape.max_positions))
    if longest < min(asked, shape.max_positions):
        yield (
            f"max_seq_len {asked} is more than the cache holds of one sequence, {longest} tokens: "
            "longer requests would be accepted and never run"
        )
    if cache.num_sequences(budget.sequence_length) == 0:
        yield f"not one sequence of {budget.sequence_length} tokens fits the cache"


def _block_warnings(choices: PlanChoices, cache: PoolSizes) -> Iterator[str]:
    size = choices.block_size
    if size < 2 or size & (size - 1):
        yield f"block size {size}: TensorRT-LLM wants a power of two above 1"
    windows = [group.window for group in cache.groups if group.window is not None]
    if windows and size > min(windows):
        yield f"a block of {size} tokens is larger than the attention window, {min(windows)}"
    if 0 < choices.host_memory // choices.split.num_gpus < _block_bytes(cache):
        yield f"host memory of {gib(choices.host_memory)} holds no block"


def _block_bytes(cache: PoolSizes) -> int:
    return sum(group.bytes_per_token for group in cache.groups) * cache.block_size


def _window_warnings(
    shape: ModelShape, choices: PlanChoices, budget: Budget, cache: PoolSizes
) -> Iterator[str]:
    num_bounded = sum(group.num_layers for group in cache.groups if group.window is not None)
    if not num_bounded:
        return
    longest, usual = budget.max_seq_len, budget.sequence_length
    per_token = shape.kv_bytes_per_token(choices.kv_dtype, choices.split)
    whole = size_pools([LayerGroup(None, 0, per_token)], budget.cache, choices.block_size, None)
    yield (
        f"{num_bounded} of {len(shape.layers)} layers forget what is out of their window only if "
        f"max_attention_window is set: a sequence of {longest} tokens then takes "
        f"{gib(cache.sequence_bytes(longest))} of a GPU, else {gib(longest * per_token)}, and "
        f"{whole.num_sequences(usual)} sequences of {usual} fit"
    )
    shares = fitted_shares(cache.groups, usual, choices.block_size)
    fitted = size_pools(cache.groups, budget.cache, choices.block_size, shares)
    now, better = cache.num_sequences(usual), fitted.num_sequences(usual)
    if shares is not None and better > now * WASTE_RATIO:
        yield (
            f"the windows share memory badly for sequences of {usual}: {now} fit, {better} with "
            f"TRTLLM_WINDOW_SIZE_SHARES={','.join(f'{share:g}' for share in shares)}"
        )


def _parallel_warnings(shape: ModelShape, choices: PlanChoices) -> Iterator[str]:
    parallel, num_kv_heads = choices.tensor_parallel, shape.num_kv_heads
    if shape.num_heads % parallel:
        yield f"{shape.num_heads} attention heads do not divide into tensor parallel {parallel}"
    if parallel == 1:
        return
    if shape.is_mla:
        yield f"every one of {parallel} GPUs keeps the whole latent cache"
    elif parallel > num_kv_heads:
        yield (
            f"{num_kv_heads} key/value heads on {parallel} GPUs: each keeps a whole head, "
            f"so the cache takes {parallel / num_kv_heads:g} times as much in all"
        )
    elif num_kv_heads % parallel:
        yield f"{num_kv_heads} key/value heads do not divide into tensor parallel {parallel}"


def _fraction_warnings(budget: Budget) -> Iterator[str]:
    if budget.fraction > budget.recommended_fraction:
        yield (
            f"free_gpu_memory_fraction {budget.fraction:g} leaves "
            f"{gib(budget.free - budget.cache)} of {gib(budget.free)}: "
            f"{budget.recommended_fraction:g} is recommended"
        )


def _dtype_warnings(shape: ModelShape, choices: PlanChoices) -> Iterator[str]:
    if choices.weight_dtype == AS_IS and shape.stored_weight_dtype == "fp32":
        yield "the weights are 32-bit and are counted so; engines load them in 16 bits: say bf16"
    if choices.kv_dtype in DTYPE_NEEDS:
        yield f"a {choices.kv_dtype} cache needs: {DTYPE_NEEDS[choices.kv_dtype]}"
    odd = {layer.key_dim for layer in shape.layers if layer.key_dim % NVFP4_BLOCK_LEN}
    if choices.kv_dtype == "nvfp4" and odd:
        yield f"heads of {min(odd)} elements do not divide into nvfp4 blocks of {NVFP4_BLOCK_LEN}"


def assumptions(shape: ModelShape, choices: PlanChoices) -> list[str]:
    return [
        *_weight_assumptions(shape, choices),
        _activation_assumption(choices),
        *_cache_assumptions(choices),
        *_window_assumptions(shape, choices),
        *shape.notes,
    ]


def _weight_assumptions(shape: ModelShape, choices: PlanChoices) -> Iterator[str]:
    is_exact = choices.weight_dtype == AS_IS and shape.stored_weight_bytes is not None
    if is_exact:
        yield "weights: size of the files"
    else:
        dtype = shape.stored_weight_dtype if choices.weight_dtype == AS_IS else choices.weight_dtype
        yield f"weights: {shape.num_params:,} parameters of the shape in {dtype}"
        if WEIGHT_BITS[dtype] < 16:
            yield f"every linear layer is in {dtype}; embedding, output head and norms in 16 bits"
    if choices.split.num_gpus > 1:
        yield "weights divide evenly over the GPUs"


def _activation_assumption(choices: PlanChoices) -> str:
    if choices.activation_reserve is not None:
        return f"activations and workspaces: {gib(choices.activation_reserve)}, as given"
    return (
        "activations and workspaces: estimated for max_num_tokens "
        f"{choices.max_num_tokens} and max_batch_size {choices.max_batch_size}; "
        "--activation-reserve replaces the estimate by a measured figure"
    )


def _cache_assumptions(choices: PlanChoices) -> Iterator[str]:
    if choices.kv_dtype == "nvfp4":
        yield "nvfp4: 4 bits an element and one fp8 scale for 16 elements, 4.5 bits in all"
    if choices.pipeline_parallel > 1:
        yield "figures of one GPU are those of the pipeline stage that keeps most"
    if choices.host_memory and choices.split.num_gpus > 1:
        yield "host memory is shared out evenly; host_cache_size is what one rank gets"
    yield "sequences share no blocks; every shared prefix makes room for more"


def _window_assumptions(shape: ModelShape, choices: PlanChoices) -> Iterator[str]:
    windows = {layer.window for layer in shape.layers}
    if windows != {None}:
        yield "a layer keeps its window and a block more; while a prompt is computed, more"
    if len(windows) > 1 and choices.window_shares is None:
        yield "memory is divided equally among the windows, as TensorRT-LLM does by default"
