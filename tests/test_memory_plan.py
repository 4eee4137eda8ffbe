"""The memory plan of small shapes, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from controllers.errors import SettingsError
from controllers.memory_plan import plan, with_window
from controllers.memory_plan_types import GIB, ComparedDtype, Pool
from controllers.model_shape import KvLayer
from tests.plan_shapes import MIB, RESERVE, choices, shape


def test_a_plan_worked_out_by_hand() -> None:
    made = plan(shape(), choices(host_memory=MIB))
    # Weights: 1.2 M parameters of 2 bytes. Free: 256 MiB - 2.4 MB = 266,035,456; half is the cache.
    assert made.weight_bytes == 2_400_000
    assert made.free_bytes == 256 * MIB - 2_400_000
    assert made.kv_cache_bytes == 133_017_728
    # A token: 4 layers * 2 heads * (16 + 16) elements * 2 bytes; a block: 32 of them.
    assert made.kv_bytes_per_token == 512
    assert made.kv_bytes_per_block == 16_384
    assert made.gpu_blocks == 8118  # 133,017,728 / 16,384 = 8118.7
    assert made.gpu_tokens == 8118 * 32
    assert made.host_blocks == 64  # 1 MiB / 16 KiB
    assert made.host_tokens == 2048
    # 2,048 tokens are 64 blocks, 4,096 are 128.
    assert made.max_concurrent_sequences == 126
    assert made.max_concurrent_sequences_at_max_seq_len == 63
    assert made.kv_bytes_per_sequence_per_gpu == 64 * 16_384
    assert made.pools == [Pool(None, 4, 512, 8118, 64)]
    assert made.recommended_max_seq_len == 4096
    assert made.max_attention_window is None
    assert made.recommended_window_shares is None
    assert made.warnings == []
    assert made.error is None


def test_a_partial_block_counts_whole() -> None:
    made = plan(shape(), choices(sequence_length=33))
    assert made.max_concurrent_sequences == 8118 // 2


def test_cache_formats_are_compared() -> None:
    rows = plan(shape(), choices()).comparison
    # nvfp4: a vector of 16 elements is 8 bytes and one scale: 4 * 2 * 2 * 9 = 144 bytes a token,
    # not the 128 that "a quarter of fp16" suggests.
    assert rows == [
        ComparedDtype("fp16", 512, 8118, 259_776, 126, 1.0, ""),
        ComparedDtype("fp8", 256, 16_237, 519_584, 253, 2.0, "Ada, Hopper or newer"),
        ComparedDtype("int8", 256, 16_237, 519_584, 253, 2.0, "TensorRT backend, calibration"),
        ComparedDtype("nvfp4", 144, 28_866, 923_712, 451, 3.56, "Blackwell, calibration"),
    ]
    assert [row.kv_dtype for row in plan(shape(), choices(kv_dtype="fp32")).comparison][0] == "fp32"
    assert plan(shape(), choices(kv_dtype="bf16")).comparison[0].kv_dtype == "bf16"


def test_the_estimate_of_activations() -> None:
    made = plan(shape(), choices(activation_reserve=None, gpu_memory=2 * GIB))
    # 8,192 tokens * (6 * 64 + 3 * 128) elements * 2 bytes, 2,048 * 1,000 logits of 6 bytes, 1 GiB.
    assert made.activation_reserve_bytes == 12_582_912 + 12_288_000 + GIB
    parallel = plan(
        shape(), choices(activation_reserve=None, gpu_memory=2 * GIB, tensor_parallel=2)
    )
    # Two GPUs halve the feed-forward part and need half a GiB for what they send each other.
    assert parallel.activation_reserve_bytes == 9_437_184 + 12_288_000 + GIB + GIB // 2


@pytest.mark.parametrize(
    ("gpu_memory", "fraction"),
    [
        (RESERVE + 2_400_000 + MIB, 0.5),  # half of 1 MiB stays
        (GIB + 128 * MIB, 0.54),  # of 253.7 MiB a tenth of the GPU stays: 115.2 MiB
        (12 * GIB, 0.91),  # of 11.1 GiB 1 GiB stays
        (200 * GIB, 0.95),  # never more
    ],
)
def test_the_recommended_fraction_leaves_room_for_error(gpu_memory: int, fraction: float) -> None:
    made = plan(shape(), choices(gpu_memory=gpu_memory, free_gpu_memory_fraction=None))
    assert made.recommended_free_gpu_memory_fraction == fraction
    assert made.free_gpu_memory_fraction == fraction


def test_a_fraction_above_the_recommended_one_is_warned_of() -> None:
    made = plan(shape(), choices(free_gpu_memory_fraction=0.9))
    assert made.recommended_free_gpu_memory_fraction == 0.54
    assert made.warnings == [
        "free_gpu_memory_fraction 0.9 leaves 0.0 GiB of 0.2 GiB: 0.54 is recommended"
    ]


def test_a_quantised_weight_format_leaves_the_embedding_alone() -> None:
    # 1 M weights of 4.125 bits (4 and a 16-bit scale for 128), 0.2 M of 16 bits.
    assert plan(shape(), choices(weight_dtype="int4")).weight_bytes == 515_625 + 400_000
    # nvfp4: 4 bits and an 8-bit scale for 16 weights.
    assert plan(shape(), choices(weight_dtype="nvfp4")).weight_bytes == 562_500 + 400_000
    assert plan(shape(), choices(weight_dtype="fp32")).weight_bytes == 4_800_000


def test_files_say_better_than_parameters_what_weights_take() -> None:
    stored = shape(stored_weight_bytes=2_500_000)
    made = plan(stored, choices())
    assert (made.weight_bytes, made.weight_source) == (2_500_000, "files")
    other = plan(stored, choices(weight_dtype="fp8"))
    assert (other.weight_bytes, other.weight_source) == (1_400_000, "parameters")


def test_tensor_parallel_divides_heads_and_weights() -> None:
    made = plan(shape(), choices(tensor_parallel=2))
    assert made.kv_bytes_per_token == 512
    assert made.kv_bytes_per_token_per_gpu == 256
    assert made.kv_bytes_per_block_per_gpu == 8192
    assert made.weight_bytes_per_gpu == 1_200_000
    assert made.warnings == []


def test_the_fullest_pipeline_stage_decides() -> None:
    """Seven layers on three stages are 3, 2 and 2; on two GPUs each, 64 bytes a layer and token."""
    made = plan(shape([KvLayer(2, 16, 16)] * 7), choices(tensor_parallel=2, pipeline_parallel=3))
    assert made.kv_bytes_per_token == 7 * 128
    assert made.kv_bytes_per_token_per_gpu == 3 * 64
    assert made.weight_bytes_per_gpu == 400_000
    assert made.pools == [Pool(None, 3, 192, made.kv_cache_bytes // (192 * 32), 0)]
    # The heaviest stage, not the longest: of 2 + 1 layers the one with four heads.
    uneven = shape([KvLayer(2, 16, 16), KvLayer(2, 16, 16), KvLayer(8, 16, 16)], num_heads=8)
    made = plan(uneven, choices(pipeline_parallel=2))
    assert made.kv_bytes_per_token_per_gpu == 8 * 32 * 2


def test_more_gpus_than_heads_replicate_them() -> None:
    made = plan(shape(), choices(tensor_parallel=4, host_memory=4 * MIB))
    assert made.kv_bytes_per_token_per_gpu == 256  # one whole head, as with two GPUs
    assert made.host_cache_size_bytes == MIB  # of each of four ranks
    assert made.host_blocks == 128
    assert made.warnings == [
        "2 key/value heads on 4 GPUs: each keeps a whole head, so the cache takes 2 times as much "
        "in all"
    ]


def test_heads_that_do_not_divide_are_warned_of() -> None:
    made = plan(shape([KvLayer(6, 16, 16)] * 4, num_heads=6), choices(tensor_parallel=4))
    assert made.kv_bytes_per_token_per_gpu == 4 * 2 * 32 * 2  # two of the six heads on a GPU
    assert made.warnings == [
        "6 attention heads do not divide into tensor parallel 4",
        "6 key/value heads do not divide into tensor parallel 4",
    ]


def test_a_latent_cache_is_whole_on_every_gpu() -> None:
    latent = shape([KvLayer(1, 24, 0)] * 4, is_mla=True)
    made = plan(latent, choices(tensor_parallel=4))
    assert made.kv_bytes_per_token == 4 * 24 * 2
    assert made.kv_bytes_per_token_per_gpu == made.kv_bytes_per_token
    assert made.warnings == ["every one of 4 GPUs keeps the whole latent cache"]
    assert [row.kv_dtype for row in made.comparison] == ["fp16", "fp8"]
    with pytest.raises(SettingsError, match="--kv-dtype: 'int8' is none of fp32, fp16, bf16, fp8"):
        plan(latent, choices(kv_dtype="int8"))


def test_max_seq_len_beyond_positions_and_cache() -> None:
    made = plan(shape(), choices(max_seq_len=5000))
    assert made.recommended_max_seq_len == 4096
    assert made.warnings == ["max_seq_len 5000 is more than the model's 4096 positions"]
    # 1 MiB is free, half of it is the cache: 32 blocks of 16 KiB, 1,024 tokens.
    small = plan(shape(), choices(gpu_memory=RESERVE + 2_400_000 + MIB))
    assert small.gpu_tokens == 1024
    assert small.recommended_max_seq_len == 1024
    assert small.max_concurrent_sequences == 0
    assert small.warnings[:2] == [
        "max_seq_len 4096 is more than the cache holds of one sequence, 1024 tokens: longer "
        "requests would be accepted and never run",
        "not one sequence of 2048 tokens fits the cache",
    ]


@pytest.mark.parametrize("size", [1, 24, 33])
def test_block_sizes_that_tensorrt_llm_refuses(size: int) -> None:
    made = plan(shape(), choices(block_size=size))
    assert made.kv_bytes_per_block == 512 * size
    assert made.warnings == [f"block size {size}: TensorRT-LLM wants a power of two above 1"]


def test_host_memory_below_one_block() -> None:
    made = plan(shape(), choices(host_memory=1000))
    assert (made.host_blocks, made.warnings) == (0, ["host memory of 0.0 GiB holds no block"])


def test_windows_bound_what_a_sequence_keeps() -> None:
    """Three layers with a window of 256 for each without; 128 bytes a token and layer."""
    layers = [KvLayer(2, 16, 16, 256)] * 3 + [KvLayer(2, 16, 16)]
    made = plan(shape(layers * 2), choices())
    # Half of 133,017,728 bytes for each window: 2 * 128 * 32 bytes a full block, 6 * 128 * 32 else.
    assert made.pools == [Pool(None, 2, 256, 8118, 0), Pool(256, 6, 768, 2706, 0)]
    assert made.gpu_blocks == 8118
    # 2,048 tokens: 64 full blocks; of the window 256 / 32 + 1 = 9.
    assert made.max_concurrent_sequences == min(8118 // 64, 2706 // 9)
    assert made.kv_bytes_per_sequence_per_gpu == 64 * 8192 + 9 * 24_576
    assert made.max_attention_window == [256, 256, 256, 4096]
    assert made.recommended_window_shares == [0.30, 0.70]  # 221,184 and 524,288 bytes a sequence
    # 0.7 of the cache: 11,366 full blocks, 177 sequences; 0.3: 1,623 blocks, 180.
    assert made.warnings == [
        "6 of 8 layers forget what is out of their window only if max_attention_window is set: a "
        "sequence of 4096 tokens then takes 0.0 GiB of a GPU, else 0.0 GiB, and 63 sequences of "
        "2048 fit",
        "the windows share memory badly for sequences of 2048: 126 fit, 177 with "
        "TRTLLM_WINDOW_SIZE_SHARES=0.3,0.7",
    ]
    fitted = plan(shape(layers * 2), choices(window_shares=(0.3, 0.7)))
    assert fitted.max_concurrent_sequences == 177
    assert len(fitted.warnings) == 1


def test_a_window_that_no_sequence_outgrows_is_none() -> None:
    made = plan(with_window(shape(), 4096), choices())
    assert made.pools == plan(shape(), choices()).pools
    assert made.warnings == []


def test_one_window_everywhere_makes_one_pool() -> None:
    made = plan(with_window(shape(), 64), choices(block_size=128))
    assert [(pool.window, pool.num_layers) for pool in made.pools] == [(64, 4)]
    assert made.max_attention_window == [64]
    assert made.recommended_max_seq_len == 4096  # only 2 blocks of any sequence are kept
    assert made.warnings[0] == "a block of 128 tokens is larger than the attention window, 64"
    assert with_window(with_window(shape(), 64), 0) == shape()


def test_what_does_not_fit_says_what_would() -> None:
    large = shape(num_linear_params=10 * GIB, num_other_params=0, hidden_size=8)
    asked = choices(gpu_memory=12 * GIB, free_gpu_memory_fraction=None)
    made = plan(large, asked)
    assert made.error == (
        "small does not fit: weights take 20.0 GiB and activations 0.9 GiB of a GPU with 12.0 GiB; "
        "fits with --weight-dtype fp8 (10.0 GiB) or --weight-dtype int4 (5.2 GiB) or "
        "--weight-dtype nvfp4 (5.6 GiB) or --tensor-parallel 2 (10.0 GiB a GPU)"
    )
    assert (made.gpu_blocks, made.max_concurrent_sequences, made.free_bytes) == (0, 0, 0)
    assert (made.recommended_free_gpu_memory_fraction, made.recommended_max_seq_len) == (0.0, 0)
    assert made.warnings == []
    for way in (
        replace(asked, weight_dtype="fp8"),
        replace(asked, weight_dtype="int4"),
        replace(asked, weight_dtype="nvfp4"),
        replace(asked, tensor_parallel=2),
    ):
        fitting = plan(large, way)
        assert fitting.error is None
        assert fitting.max_concurrent_sequences >= 1


def test_room_for_less_than_a_block_does_not_fit() -> None:
    made = plan(shape(), choices(gpu_memory=RESERVE + 2_400_000 + 16_384))
    assert made.error is not None
    assert "; 0.0 GiB are left, not one block; fits with" in made.error


def test_nothing_may_help() -> None:
    made = plan(shape(num_linear_params=1000 * GIB), choices(gpu_memory=2 * GIB))
    assert made.error is not None
    assert made.error.endswith("; no option here makes it fit")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_dtype": "int4"}, "--kv-dtype: 'int4' is none of"),
        ({"weight_dtype": "int2"}, "--weight-dtype: 'int2' is none of as-is, fp32"),
        ({"block_size": 0}, "--block-size: 0 is less than 1"),
        ({"tensor_parallel": 0}, "--tensor-parallel: 0 is less than 1"),
        ({"pipeline_parallel": 5}, "--pipeline-parallel: 5 stages for 4 layers"),
        ({"max_seq_len": 0}, "--max-seq-len: 0 is less than 1"),
        ({"gpu_memory": 0}, "--gpu-memory: 0 is less than 1"),
        ({"free_gpu_memory_fraction": 1.0}, "--free-gpu-memory-fraction: 1.0 is not between 0"),
        ({"sequence_length": 5000}, "--sequence-length: 5000 is more than max_seq_len, 4096"),
        ({"window_shares": (0.5, 0.5)}, "--window-shares: 2 for 1 attention windows"),
        ({"window_shares": (0.5,)}, "--window-shares: 0.5 in all, not positive parts of 1"),
        ({"window_shares": (math.nan,)}, "--window-shares: nan in all, not positive parts of 1"),
    ],
)
def test_choices_without_meaning(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        plan(shape(), choices(**changes))
    assert str(caught.value).startswith(message)


def test_what_a_format_needs_is_said_when_it_is_chosen() -> None:
    odd = shape([KvLayer(2, 24, 24)])
    made = plan(odd, choices(kv_dtype="nvfp4"))
    assert made.kv_bytes_per_token == 2 * 2 * (12 + 2)  # 24 elements: 12 bytes and 2 scales
    assert made.warnings == [
        "a nvfp4 cache needs: Blackwell, calibration",
        "heads of 24 elements do not divide into nvfp4 blocks of 16",
    ]
    assert "nvfp4: 4 bits an element and one fp8 scale for 16 elements, 4.5 bits in all" in (
        made.assumptions
    )
