"""The weights of a Llama-family model, in the layout the forward pass multiplies with.

Owns: tensor names, the order of query/key rows, which matrices are fused.
Does not know: how a forward pass runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from controllers.errors import ModelFileError
from serve_app.engine.batch import FloatArray
from serve_app.engine.config import EMBEDDING_TENSOR, HEAD_TENSOR, ModelConfig
from serve_app.engine.gguf import GgufFile
from serve_app.engine.linear import PackedLinear


@dataclass(frozen=True, slots=True)
class LayerWeights:
    attention_norm: FloatArray
    qkv: PackedLinear
    """Query, key and value rows in this order; rotary pairs are (i, i + head_dim / 2)."""
    attention_out: PackedLinear
    ffn_norm: FloatArray
    gate_up: PackedLinear
    """Gate rows, then up rows."""
    down: PackedLinear


@dataclass(frozen=True, slots=True)
class ModelWeights:
    layers: list[LayerWeights]
    final_norm: FloatArray
    head: PackedLinear
    embedding: FloatArray | None
    """None when the head is the embedding as well (tied)."""


def load_model(path: Path) -> tuple[ModelConfig, ModelWeights]:
    """Reads and dequantises a GGUF file; it is closed on return.

    Raises ModelFileError naming the file and what is missing, misshapen or unsupported.
    """
    with GgufFile(path) as file:
        config = ModelConfig.from_gguf(file)
        return config, load_weights(file, config)


def load_weights(file: GgufFile, config: ModelConfig) -> ModelWeights:
    tensors = _Tensors(file)
    vocab_shape = (config.vocab_size, config.hidden_size)
    embedding = tensors.get(EMBEDDING_TENSOR, vocab_shape)
    head = embedding if config.is_tied else tensors.get(HEAD_TENSOR, vocab_shape)
    weights = ModelWeights(
        layers=[_load_layer(tensors, config, index) for index in range(config.num_layers)],
        final_norm=tensors.get("output_norm.weight", (config.hidden_size,)),
        head=PackedLinear(head),
        embedding=None if config.is_tied else embedding,
    )
    tensors.refuse_unread()
    return weights


def unpermute_rotary(weight: FloatArray, num_heads: int) -> FloatArray:
    """Query or key rows from neighbouring rotary pairs (2i, 2i + 1) to (i, i + head_dim / 2)."""
    num_rows, num_columns = weight.shape
    pairs = weight.reshape(num_heads, num_rows // num_heads // 2, 2, num_columns)
    halves: FloatArray = pairs.swapaxes(1, 2).reshape(num_rows, num_columns)
    return halves


def _load_layer(tensors: _Tensors, config: ModelConfig, index: int) -> LayerWeights:
    hidden, ffn = config.hidden_size, config.ffn_size
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def get(name: str, *shape: int) -> FloatArray:
        return tensors.get(f"blk.{index}.{name}.weight", shape)

    query = unpermute_rotary(get("attn_q", q_rows, hidden), config.num_heads)
    key = unpermute_rotary(get("attn_k", kv_rows, hidden), config.num_kv_heads)
    gate_up = np.concatenate((get("ffn_gate", ffn, hidden), get("ffn_up", ffn, hidden)))
    return LayerWeights(
        attention_norm=get("attn_norm", hidden),
        qkv=PackedLinear(np.concatenate((query, key, get("attn_v", kv_rows, hidden)))),
        attention_out=PackedLinear(get("attn_output", hidden, q_rows)),
        ffn_norm=get("ffn_norm", hidden),
        gate_up=PackedLinear(gate_up),
        down=PackedLinear(get("ffn_down", hidden, ffn)),
    )


class _Tensors:
    """Tensors of one file, checked against the shape the configuration implies."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self._unread = set(file.tensors)

    def refuse_unread(self) -> None:
        """A tensor that is left over (a bias, say) means another model than is computed here."""
        if self._unread:
            name = min(self._unread)
            raise ModelFileError(f"{self.file.path}: tensor {name!r} has no place in a Llama model")

    def get(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        self._unread.discard(name)
        tensor = self.file.tensor(name)
        if tensor.shape != shape:
            raise ModelFileError(
                f"{self.file.path}: tensor {name!r} has shape {tensor.shape}, expected {shape}"
            )
        return tensor
