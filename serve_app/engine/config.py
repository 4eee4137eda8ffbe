"""The shape of a Llama-family model, read from GGUF metadata."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controllers.errors import ModelFileError
from serve_app.engine.gguf import GgufFile, Metadata

ARCHITECTURE = "llama"
EMBEDDING_TENSOR = "token_embd.weight"
ROPE_FACTORS_TENSOR = "rope_freqs.weight"
HEAD_TENSOR = "output.weight"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """`rope_base` is the base of the rotary angles, `context_len` the most tokens of a sequence,
    `is_tied` whether the output head is the embedding, `attention_window` to how many tokens a
    token attends, itself included; None: to all before it."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    rope_base: float
    norm_eps: float
    context_len: int
    is_tied: bool
    attention_window: int | None = None

    @classmethod
    def from_gguf(cls, file: GgufFile) -> ModelConfig:
        """Raises ModelFileError for another architecture, a missing key or scaled RoPE."""
        keys = _Keys(file.path, file.metadata)
        architecture = keys.get("general.architecture")
        if architecture != ARCHITECTURE:
            raise keys.fail(f"architecture {architecture!r} is not supported (only llama)")
        _refuse_rope_scaling(keys, file)
        hidden, num_heads = keys.count("embedding_length"), keys.count("attention.head_count")
        config = cls(
            vocab_size=_num_embeddings(keys, file),
            hidden_size=hidden,
            num_layers=keys.count("block_count"),
            num_heads=num_heads,
            num_kv_heads=keys.count("attention.head_count_kv", num_heads),
            head_dim=keys.count("attention.key_length", hidden // num_heads),
            ffn_size=keys.count("feed_forward_length"),
            rope_base=keys.number("rope.freq_base", 10000.0),
            norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
            context_len=keys.count("context_length"),
            is_tied=HEAD_TENSOR not in file.tensors,
            attention_window=_attention_window(keys),
        )
        _check_shape(keys, config)
        return config


class _Keys:
    """Metadata look-ups that name the file and the key when they fail."""

    def __init__(self, path: Path, metadata: Metadata) -> None:
        self.path = path
        self.metadata = metadata

    def fail(self, message: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {message}")

    def get(self, key: str, default: Any = None) -> Any:
        value = self.metadata.get(key, default)
        if value is None:
            raise self.fail(f"metadata key {key!r} is missing")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        name = f"{ARCHITECTURE}.{key}"
        value = self.get(name, default)
        if not isinstance(value, int) or value < 1:
            raise self.fail(f"metadata key {name!r} is {value!r}, not a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        name = f"{ARCHITECTURE}.{key}"
        value = self.get(name, default)
        if not isinstance(value, (int, float)) or not value > 0:
            raise self.fail(f"metadata key {name!r} is {value!r}, not a positive number")
        return float(value)


def _refuse_rope_scaling(keys: _Keys, file: GgufFile) -> None:
    scaling = keys.get("llama.rope.scaling.type", "none")
    factor = keys.get("llama.rope.scaling.factor", 1.0)
    if scaling != "none" and factor != 1.0:
        raise keys.fail(f"RoPE scaling {scaling!r} (factor {factor}) is not supported")
    if ROPE_FACTORS_TENSOR in file.tensors:
        raise keys.fail(f"RoPE scaling by tensor {ROPE_FACTORS_TENSOR!r} is not supported")


def _attention_window(keys: _Keys) -> int | None:
    """None for a window that no sequence can leave; files write 0 for none."""
    if not keys.get(f"{ARCHITECTURE}.attention.sliding_window", 0):
        return None
    window = keys.count("attention.sliding_window")
    return window if window < keys.count("context_length") else None


def _num_embeddings(keys: _Keys, file: GgufFile) -> int:
    """The vocabulary size as the weights have it; the metadata key for it is optional."""
    embedding = file.tensors.get(EMBEDDING_TENSOR)
    if embedding is None or len(embedding.shape) != 2:
        raise keys.fail(f"tensor {EMBEDDING_TENSOR!r} is missing or not a matrix")
    return embedding.shape[0]


def _check_shape(keys: _Keys, config: ModelConfig) -> None:
    if config.num_heads % config.num_kv_heads:
        raise keys.fail(
            f"{config.num_heads} heads do not divide into {config.num_kv_heads} key/value heads"
        )
    rope_dims = keys.count("rope.dimension_count", config.head_dim)
    if rope_dims != config.head_dim or config.head_dim % 2:
        raise keys.fail(f"RoPE over {rope_dims} of {config.head_dim} dimensions is not supported")
