"""Memory plans of real models. Every expected figure is worked out here by hand.

The shapes are those of the published config.json files, reduced to the keys that matter.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from controllers.memory_plan import plan
from controllers.memory_plan_types import GIB, Plan, PlanChoices
from controllers.model_shape import ModelShape
from serve_app.model_shapes import read_shape
from tests.default_model import model_path

CONFIGS = Path(__file__).parent / "data" / "configs"
KIB = 1024


def shape_of(name: str) -> ModelShape:
    return read_shape(CONFIGS / name)


def planned(name: str, **changes: object) -> Plan:
    values: dict[str, object] = {
        "kv_dtype": "fp16",
        "weight_dtype": "as-is",
        "gpu_memory": 80 * GIB,
        **changes,
    }
    return plan(shape_of(name), PlanChoices(**values))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "kv_bytes_per_token"),
    [
        # keys and values * layers * key/value heads * elements of a head * bytes
        ("llama-2-7b", 2 * 32 * 32 * 128 * 2),  # 512 KiB
        # Grouped-query attention: 8 key/value heads. Write-ups that multiply hidden_size instead
        # (2 * 80 * 8192 * 2) arrive at 2.5 MiB, eight times too much.
        ("llama-2-70b", 2 * 80 * 8 * 128 * 2),  # 320 KiB
        # Often given as 512 KiB, the figure of Llama-2-7B, which has 32 key/value heads.
        ("llama-3.1-8b", 2 * 32 * 8 * 128 * 2),  # 128 KiB
        ("smollm2-135m", 2 * 30 * 3 * 64 * 2),  # 22.5 KiB
        ("qwen2.5-7b", 2 * 28 * 4 * 128 * 2),  # 56 KiB
        ("mixtral-8x7b", 2 * 32 * 8 * 128 * 2),  # experts keep nothing: as Llama-3.1-8B
        ("qwen3-30b-a3b", 2 * 48 * 4 * 128 * 2),  # head_dim 128 is given; 2048 / 32 would be 64
        ("gemma-2-9b", 2 * 42 * 8 * 256 * 2),
        ("gemma-3-4b", 2 * 34 * 4 * 256 * 2),  # heads and head_dim are left out of its file
        # One latent vector of 512 + 64 elements for all 128 heads, and no value beside it.
        ("deepseek-v3", 61 * (512 + 64) * 2),
    ],
)
def test_kv_bytes_per_token(name: str, kv_bytes_per_token: int) -> None:
    assert shape_of(name).kv_bytes_per_token("fp16") == kv_bytes_per_token


def test_the_four_models_in_kib() -> None:
    names = ("llama-2-7b", "llama-2-70b", "llama-3.1-8b", "smollm2-135m")
    found = [planned(name, weight_dtype="nvfp4").kv_bytes_per_token / KIB for name in names]
    assert found == [512, 320, 128, 22.5]


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3.1-8b", 8_030_261_248),
        ("smollm2-135m", 134_515_008),
        ("qwen2.5-7b", 7_615_616_512),  # biases of queries, keys and values
        ("mistral-7b-v0.1", 7_241_732_096),
        ("mixtral-8x7b", 46_702_792_704),  # not 8 * 7 B: attention is shared by the experts
        ("qwen3-30b-a3b", 30_532_122_624),
        ("gemma-2-9b", 9_241_705_984),  # four norms a layer, tied embedding
        ("deepseek-v3", 671_026_404_352),  # published with 58 * 256 router biases more
    ],
)
def test_parameters_are_the_published_ones(name: str, num_parameters: int) -> None:
    assert shape_of(name).num_params == num_parameters


def test_llama_2_7b_on_80_gib() -> None:
    made = planned("llama-2-7b")
    # 2 bytes a parameter.
    assert made.weight_bytes == 13_476_831_232
    # 8,192 tokens * (6 * 4,096 + 3 * 11,008) * 2 + 2,048 * 32,000 * 6 + 1 GiB
    assert made.activation_reserve_bytes == 943_718_400 + 393_216_000 + GIB
    # 85,899,345,920 - 13,476,831,232 - 2,410,676,224
    assert made.free_bytes == 70_011_838_464
    # 2 % of 80 GiB would be a fraction of 0.97; 0.95 is the most. 0.95 * free / 16 MiB = 3,964.4
    assert made.recommended_free_gpu_memory_fraction == 0.95
    assert made.kv_bytes_per_block == 16 * 1024 * KIB
    assert made.gpu_blocks == 3964
    assert made.max_concurrent_sequences == 61  # 64 blocks each
    assert made.max_concurrent_sequences_at_max_seq_len == 30  # 128 blocks each
    assert made.recommended_max_seq_len == 4096
    assert made.warnings == []
    # Write-ups say that int4 makes it 3.5 GB; the embedding and the head stay in 16 bits.
    # 6,476,005,376 * 4.125 / 8 + 262,410,240 * 2
    assert planned("llama-2-7b", weight_dtype="int4").weight_bytes == 3_339_190_272 + 524_820_480


def test_llama_2_70b_wants_two_gpus_and_replicates_heads_on_sixteen() -> None:
    alone = planned("llama-2-70b")
    assert alone.error is not None
    assert "--tensor-parallel 2 (64.2 GiB a GPU)" in alone.error
    two = planned("llama-2-70b", tensor_parallel=2)
    assert two.error is None
    assert two.weight_bytes_per_gpu == 68_976_648_192  # 2 bytes, on 2 GPUs
    assert two.kv_bytes_per_token_per_gpu == 160 * KIB
    eight = planned("llama-2-70b", tensor_parallel=8)
    sixteen = planned("llama-2-70b", tensor_parallel=16)
    # One head is the least a GPU keeps: 2 * 80 * 1 * 128 * 2.
    assert eight.kv_bytes_per_token_per_gpu == sixteen.kv_bytes_per_token_per_gpu == 40 * KIB
    assert sixteen.kv_bytes_per_token == 320 * KIB


def test_cache_formats_of_llama_3_1_8b() -> None:
    rows = {row.kv_dtype: row for row in planned("llama-3.1-8b").comparison}
    # nvfp4 is not a quarter: 128 elements are 64 bytes and 8 scales, 72 of 256 bytes.
    assert {dtype: row.kv_bytes_per_token // KIB for dtype, row in rows.items()} == {
        "fp16": 128,
        "fp8": 64,
        "int8": 64,
        "nvfp4": 36,
    }
    assert [row.times_tokens for row in rows.values()] == [1.0, 2.0, 2.0, 3.56]


def test_tokens_of_llama_3_1_8b_against_a_real_engine() -> None:
    """vLLM 0.25 with bf16 weights and blocks of 32 on an H200 of 139 GiB, 0.8 of it given to it
    (16,384 tokens and 1,024 sequences an iteration, its defaults), made room for 776,864 tokens.
    """
    made = planned(
        "llama-3.1-8b",
        gpu_memory=int(0.8 * 139 * GIB),
        free_gpu_memory_fraction=0.999,
        max_num_tokens=16_384,
        max_batch_size=1024,
    )
    assert 0.97 < made.gpu_tokens / 776_864 < 1.0  # an estimate should err on this side


def test_gemma_3_keeps_most_layers_short() -> None:
    made = planned("gemma-3-4b")
    # Every sixth of 34 layers sees everything: 5; 2 * 4 * 256 * 2 bytes a token and layer.
    assert [(pool.window, pool.num_layers, pool.kv_bytes_per_token) for pool in made.pools] == [
        (None, 5, 5 * 4 * KIB),
        (1024, 29, 29 * 4 * KIB),
    ]
    assert made.max_attention_window == [1024] * 5 + [131_072]


def test_mistral_7b_v0_1_forgets_beyond_its_window() -> None:
    made = planned("mistral-7b-v0.1")
    # 4,096 / 32 blocks and one more of 128 KiB * 32, however long the sequence.
    sequence = 129 * 4 * 1024 * KIB
    assert made.max_concurrent_sequences_at_max_seq_len == made.kv_cache_bytes // sequence
    assert made.max_attention_window == [4096]


def test_gpt_oss_alternates_windows() -> None:
    shape = shape_of("gpt-oss-20b")
    assert [layer.window for layer in shape.layers] == [128, None] * 12
    assert shape.stored_weight_dtype == "mxfp4"


def test_deepseek_v3_keeps_its_whole_latent_cache_on_each_gpu() -> None:
    made = planned("deepseek-v3", tensor_parallel=8, gpu_memory=140 * GIB, kv_dtype="fp8")
    assert made.kv_bytes_per_token == made.kv_bytes_per_token_per_gpu == 61 * 576
    # Its checkpoint is fp8: 1 byte for a linear weight, 2 for embedding, head and norms.
    shape = shape_of("deepseek-v3")
    assert made.weight_bytes == shape.num_linear_params + 2 * shape.num_other_params
    assert "every one of 8 GPUs keeps the whole latent cache" in made.warnings


@pytest.mark.model
def test_the_default_model_file() -> None:
    path = model_path()
    shape = read_shape(path)
    assert shape.num_params == 134_515_008  # the file lists its tensors; the same as of the config
    assert shape.layers == shape_of("smollm2-135m").layers
    assert shape.max_positions == 8192
    assert shape.kv_bytes_per_token("fp32") == 2 * 30 * 3 * 64 * 4  # the local engine on a CPU
    # All of the file but its header: 210 Q4_1, 1 Q8_0 and 61 F32 tensors.
    assert shape.stored_weight_bytes == 96_576_768
    assert path.stat().st_size - 96_576_768 < 2_000_000
