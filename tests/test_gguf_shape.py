"""GGUF metadata of several architectures as a model shape, whatever the tensors' encodings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controllers.errors import ModelFileError
from controllers.model_shape import KvLayer, ModelShape
from serve_app.engine.gguf import read_shapes
from serve_app.model_shapes import read_shape
from tests.gguf_writer import GgufWriter

Q4_K = 12  # an encoding that the engine cannot read


def write(path: Path, architecture: str = "llama", **changes: Any) -> Path:
    """Four layers; keys of the architecture by their last part, a value of ... leaves one out."""
    keys = {
        "block_count": 4,
        "embedding_length": 64,
        "feed_forward_length": 128,
        "context_length": 512,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    metadata = {f"{architecture}.{key}": value for key, value in keys.items() if value is not ...}
    writer = GgufWriter(metadata={"general.architecture": architecture, **metadata})
    writer.add_float32("token_embd.weight", np.zeros((100, 64)))
    writer.add_float32("output_norm.weight", np.zeros(64))
    writer.add_raw("blk.0.attn_q.weight", (4, 256), Q4_K, bytes(4 * 144))
    return writer.write(path / "model.gguf")


def test_shapes_are_read_whatever_the_encoding(tmp_path: Path) -> None:
    path = write(tmp_path)
    found = read_shapes(path)
    assert found.shapes == {
        "token_embd.weight": (100, 64),
        "output_norm.weight": (64,),
        "blk.0.attn_q.weight": (4, 256),
    }
    assert found.num_data_bytes == 100 * 64 * 4 + 64 * 4 + 4 * 144


def test_the_shape_of_a_small_file(tmp_path: Path) -> None:
    path = write(tmp_path)
    shape = read_shape(path)
    assert shape == ModelShape(
        name="model",
        layers=(KvLayer(2, 16, 16),) * 4,
        num_heads=4,
        hidden_size=64,
        ffn_size=128,
        vocab_size=100,
        max_positions=512,
        num_linear_params=1024,
        num_other_params=6464,
        stored_weight_dtype="gguf",
        stored_weight_bytes=26_432,
    )
    assert read_shape(tmp_path) == shape  # the only GGUF file of a folder


@pytest.mark.parametrize(
    ("architecture", "changes", "layers"),
    [
        ("qwen2", {"attention__head_count_kv": ...}, [KvLayer(4, 16, 16)] * 4),
        (
            "llama",
            {"attention__key_length": 32, "attention__value_length": 24},
            [KvLayer(2, 32, 24)] * 4,
        ),
        (
            "llama",
            {"attention__head_count_kv": [2, 2, 4, 1]},
            [KvLayer(count, 16, 16) for count in (2, 2, 4, 1)],
        ),
        (
            "gemma2",
            {"attention__sliding_window": 32},
            [KvLayer(2, 16, 16, window) for window in (32, None, 32, None)],
        ),
        ("phi3", {"attention__sliding_window": 32}, [KvLayer(2, 16, 16, 32)] * 4),
        ("phi3", {"attention__sliding_window": 0}, [KvLayer(2, 16, 16)] * 4),
        (
            "any",
            {
                "attention__sliding_window": 32,
                "attention__sliding_window_pattern": [True, True, True, False],
            },
            [KvLayer(2, 16, 16, window) for window in (32, 32, 32, None)],
        ),
        (
            "deepseek2",
            {"attention__kv_lora_rank": 24, "rope__dimension_count": 8},
            [KvLayer(1, 32, 0)] * 4,
        ),
    ],
)
def test_layers_by_architecture(
    tmp_path: Path, architecture: str, changes: dict[str, Any], layers: list[KvLayer]
) -> None:
    assert list(read_shape(write(tmp_path, architecture, **changes)).layers) == layers


def test_the_width_of_active_experts(tmp_path: Path) -> None:
    experts = {"expert_used_count": 2, "expert_feed_forward_length": 48}
    assert read_shape(write(tmp_path, "qwen3moe", **experts)).ffn_size == 96
    assert read_shape(write(tmp_path, expert_used_count=2)).ffn_size == 256


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_count": ...}, "llama.block_count is missing"),
        ({"context_length": "long"}, "llama.context_length is 'long', not a positive integer"),
        ({"ssm__state_size": 16}, "keeps a recurrent state (llama.ssm.state_size): not covered"),
        ({"attention__head_count_kv": [2]}, "llama.attention.head_count_kv has 1 values for 4"),
        (
            {"attention__sliding_window": 8, "attention__sliding_window_pattern": [True]},
            "1 windows are listed for 4 layers",
        ),
    ],
)
def test_what_cannot_be_planned_is_said(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, **changes)
    with pytest.raises(ModelFileError) as caught:
        read_shape(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_parts_and_files_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    head = {"general.architecture": "llama", "split.count": 3}
    GgufWriter(metadata=head).write(path)
    with pytest.raises(ModelFileError, match="is one of 3 parts: merge them first"):
        read_shape(path)
    GgufWriter().write(path)
    with pytest.raises(ModelFileError, match=r"general\.architecture is missing"):
        read_shape(path)
    path.write_bytes(b"GGUFnonsense")
    with pytest.raises(ModelFileError, match="is not supported"):
        read_shape(path)
    whole = write(tmp_path).read_bytes()
    path.write_bytes(whole[:200])
    with pytest.raises(ModelFileError, match="truncated"):
        read_shape(path)
