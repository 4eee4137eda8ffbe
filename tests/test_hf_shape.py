"""config.json of many kinds: defaults, windows, experts, quantisation, what is refused and how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controllers.errors import ModelFileError
from controllers.model_shape import KvLayer, ModelShape
from serve_app.model_shapes import read_shape

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "vocab_size": 1000,
    "torch_dtype": "float16",
}


def read(folder: Path, **changes: Any) -> ModelShape:
    """A Llama with changed keys; a value of ... leaves the key out."""
    values = {key: value for key, value in {**LLAMA, **changes}.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(values), "utf-8")
    return read_shape(folder)


def test_the_shape_of_a_small_llama(tmp_path: Path) -> None:
    shape = read(tmp_path)
    assert shape == ModelShape(
        name=tmp_path.name,
        layers=(KvLayer(2, 16, 16),) * 4,
        num_heads=4,
        hidden_size=64,
        ffn_size=128,
        vocab_size=1000,
        max_positions=512,
        # 4 layers of 2 * 64 * 16 * (4 + 2) and 3 * 64 * 128
        num_linear_params=4 * (12_288 + 24_576),
        # embedding and head, two norms a layer and one at the end
        num_other_params=2 * 64_000 + 4 * 128 + 64,
        stored_weight_dtype="fp16",
    )
    assert read_shape(tmp_path / "config.json") == shape


def test_keys_that_may_be_left_out(tmp_path: Path) -> None:
    assert read(tmp_path, num_key_value_heads=...).layers == (KvLayer(4, 16, 16),) * 4
    assert read(tmp_path, num_key_value_heads=None).layers == (KvLayer(4, 16, 16),) * 4
    assert read(tmp_path, head_dim=32).layers == (KvLayer(2, 32, 32),) * 4
    assert read(tmp_path, torch_dtype=...).stored_weight_dtype == "bf16"
    assert read(tmp_path, _name_or_path="org/model").name == "org/model"


def test_a_tied_head_is_counted_once(tmp_path: Path) -> None:
    apart = read(tmp_path).num_params
    assert read(tmp_path, tie_word_embeddings=True).num_params == apart - 64_000
    assert read(tmp_path, attention_bias=True).num_params == apart + 4 * (16 * 8 + 64)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window": 32}, [32, 32, 32, 32]),
        ({"sliding_window": None}, [None] * 4),
        ({"sliding_window": 32, "use_sliding_window": False}, [None] * 4),
        (
            {"sliding_window": 32, "use_sliding_window": True, "max_window_layers": 3},
            [None, None, None, 32],
        ),
        ({"sliding_window": 32, "sliding_window_pattern": 2}, [32, None, 32, None]),
        ({"sliding_window": 32, "model_type": "gemma2"}, [32, None, 32, None]),
        (
            {"sliding_window": 32, "layer_types": ["full_attention"] + ["sliding_attention"] * 3},
            [None, 32, 32, 32],
        ),
        (
            {"attention_chunk_size": 8, "layer_types": ["chunked_attention"] * 4},
            [8, 8, 8, 8],
        ),
    ],
)
def test_windows(tmp_path: Path, changes: dict[str, Any], windows: list[int | None]) -> None:
    assert [layer.window for layer in read(tmp_path, **changes).layers] == windows


def test_experts_that_leave_some_layers_dense(tmp_path: Path) -> None:
    dense = read(tmp_path).num_linear_params - 4 * 24_576
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    sparse = 8 * 3 * 64 * 32 + 64 * 8  # eight experts and the router
    every_second = read(tmp_path, **experts, decoder_sparse_step=2, mlp_only_layers=[3])
    assert every_second.num_linear_params == dense + 3 * 24_576 + sparse  # only layer 1
    assert every_second.ffn_size == 128
    all_sparse = read(tmp_path, **experts)
    assert all_sparse.num_linear_params == dense + 4 * sparse
    assert all_sparse.ffn_size == 64  # two experts of 32
    shared = read(tmp_path, **experts, n_shared_experts=1, first_k_dense_replace=1)
    assert shared.num_linear_params == dense + 24_576 + 3 * (sparse + 3 * 64 * 32)


def test_a_language_model_inside_another(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "llava", "text_config": LLAMA, "vision_config": {}}), "utf-8"
    )
    shape = read_shape(tmp_path)
    assert shape.layers == (KvLayer(2, 16, 16),) * 4
    assert shape.notes == ("only the language model's parameters are counted, not vision or audio",)


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
            },
            "int4",
        ),
    ],
)
def test_quantised_checkpoints(tmp_path: Path, quantization: dict[str, Any], dtype: str) -> None:
    shape = read(tmp_path, quantization_config=quantization)
    assert shape.stored_weight_dtype == dtype


def test_a_checkpoint_says_which_cache_it_was_calibrated_for(tmp_path: Path) -> None:
    scheme = {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    assert read(tmp_path, quantization_config=scheme).stored_kv_dtype == "fp8"
    (tmp_path / "hf_quant_config.json").write_text(
        json.dumps({"quantization": {"quant_algo": "W4A16_AWQ", "kv_cache_quant_algo": "NVFP4"}}),
        "utf-8",
    )
    shape = read(tmp_path)
    assert (shape.stored_weight_dtype, shape.stored_kv_dtype) == ("int4", "nvfp4")


def test_weights_are_as_large_as_their_files(tmp_path: Path) -> None:
    assert read(tmp_path).stored_weight_bytes is None
    (tmp_path / "model-1.safetensors").write_bytes(bytes(300_000))
    (tmp_path / "model-2.safetensors").write_bytes(bytes(40_000))
    (tmp_path / "consolidated.safetensors").write_bytes(bytes(340_000))
    (tmp_path / "adapter_model.safetensors").write_bytes(bytes(10_000))
    assert read(tmp_path).stored_weight_bytes == 340_000
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"metadata": {"total_size": 330000}}', "utf-8")
    assert read(tmp_path).stored_weight_bytes == 330_000  # without the files' headers
    for damaged in ("{}", '{"metadata": {"total_size": "x"}}', "not json", "[]"):
        index.write_text(damaged, "utf-8")
        with pytest.raises(ModelFileError, match="total_size"):
            read(tmp_path)


def test_pointers_to_weights_are_not_weights(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ModelFileError, match="the weights beside it have 43 bytes, too few to be"):
        read(tmp_path)


def test_a_type_that_is_not_known_is_said(tmp_path: Path) -> None:
    assert read(tmp_path).notes == ()
    note = "a model of type 'newest' is counted as a Llama"
    assert read(tmp_path, model_type="newest").notes == (note,)
    (tmp_path / "model.safetensors").write_bytes(bytes(340_000))
    assert read(tmp_path, model_type="newest").notes == ()  # nothing is counted


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": ...}, "num_hidden_layers is missing"),
        ({"num_hidden_layers": "4"}, "num_hidden_layers is '4', not a positive integer"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000, more than 10000"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True, not a positive integer"),
        ({"vocab_size": 0}, "vocab_size is 0, not a positive integer"),
        ({"num_key_value_heads": 3}, "4 heads do not divide into 3 key/value heads"),
        ({"num_attention_heads": 6}, "hidden_size 64 does not divide into 6 heads: no head_dim"),
        ({"num_key_value_heads": [2, 2]}, "num_key_value_heads has 2 values for 4 layers"),
        ({"num_key_value_heads": [2, 2, 2, "x"]}, "not positive integers"),
        (
            {"num_key_value_heads": ..., "model_type": "falcon"},
            "num_key_value_heads is missing, and 'falcon' has no known default",
        ),
        ({"layer_types": ["full_attention"]}, "layer_types lists 1 layers, not 4"),
        ({"layer_types": "full"}, "layer_types is 'full', not a list"),
        ({"num_experts": 2, "mlp_only_layers": 1}, "mlp_only_layers is 1, not a list"),
        ({"layer_types": ["mamba"] * 4}, "layer type 'mamba' keeps another kind of state"),
        ({"layer_types": ["sliding_attention"] * 4}, "sliding_window is missing"),
        ({"ssm_state_size": 16}, "keeps a recurrent state (Mamba) (ssm_state_size)"),
        ({"num_kv_shared_layers": 2}, "keeps caches shared between layers"),
        ({"is_encoder_decoder": True}, "keeps an encoder's output"),
        ({"index_head_dim": 128}, "keeps an index of its own (sparse attention)"),
        ({"torch_dtype": "float8"}, "torch_dtype 'float8' is none of float32, float16, bfloat16"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', not true or false"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "quantised by 'aqlm' in a way"),
        ({"quantization_config": "fp8"}, "quantization_config is 'fp8', not an object"),
        ({"text_config": [1]}, "text_config is list, not an object"),
        ({"kv_lora_rank": 32}, "qk_rope_head_dim is missing"),
    ],
)
def test_what_cannot_be_planned_is_said(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelFileError) as caught:
        read(tmp_path, **changes)
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("[]", "holds list, not an object"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_a_damaged_config(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text, "utf-8")
    with pytest.raises(ModelFileError, match=message):
        read_shape(tmp_path)


def test_paths_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="nothing does not exist: a GGUF file or a folder"):
        read_shape(tmp_path / "nothing")
    with pytest.raises(ModelFileError, match=r"one GGUF file or config\.json is needed, found nei"):
        read_shape(tmp_path)
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"found a\.gguf, b\.gguf"):
        read_shape(tmp_path)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ModelFileError, match=r"config\.json: cannot be read: Is a directory"):
        read_shape(tmp_path)
