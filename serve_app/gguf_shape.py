"""GGUF metadata -> ModelShape. Parameters and weight bytes are exact: the file lists every tensor.

Owns which keys of GGUF matter to the KV cache, for any decoder; encodings do not matter.
"""

from __future__ import annotations

import math
from pathlib import Path

from controllers.model_shape import KvLayer, ModelShape
from serve_app.config_keys import ConfigKeys
from serve_app.engine.gguf import GgufShapes, read_shapes

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
# Period of architectures that do not say which layers have the window; the last of each looks at
# everything.
PERIODS = {"gemma2": 2, "gemma3": 6, "cohere2": 4, "gpt-oss": 2}
STATE_KEYS = ("ssm.state_size", "ssm.conv_kernel", "wkv.head_size", "shortconv.l_cache")
STORED_DTYPE = "gguf"  # a name only: the sizes are the file's


def read_gguf_shape(path: Path) -> ModelShape:
    """Raises ModelFileError that names file and key."""
    file = read_shapes(path)
    keys = _keys(path, file)
    num_layers, num_heads = keys.num_layers("block_count"), _num_heads(keys)
    linear = sum(math.prod(shape) for name, shape in file.shapes.items() if _is_linear(name, shape))
    total = sum(math.prod(shape) for shape in file.shapes.values())
    return ModelShape(
        name=str(file.metadata.get("general.name", path.stem)),
        layers=_kv_layers(keys, num_layers, num_heads),
        num_heads=num_heads,
        hidden_size=keys.count("embedding_length"),
        ffn_size=_ffn_size(keys, num_layers),
        vocab_size=_vocab_size(keys, file),
        max_positions=keys.count("context_length"),
        num_linear_params=linear,
        num_other_params=total - linear,
        stored_weight_dtype=STORED_DTYPE,
        stored_weight_bytes=file.num_data_bytes,
        is_mla=keys.has("attention.kv_lora_rank"),
    )


def _keys(path: Path, file: GgufShapes) -> ConfigKeys:
    whole = ConfigKeys(path, file.metadata)
    architecture = whole.get("general.architecture")
    if not isinstance(architecture, str):
        raise whole.fail("metadata key general.architecture is missing")
    if whole.get("split.count", 1) != 1:
        raise whole.fail(f"is one of {whole.get('split.count')} parts: merge them first")
    keys = ConfigKeys(path, file.metadata, f"{architecture}.")
    for key in STATE_KEYS:
        if keys.has(key):
            raise keys.fail(f"keeps a recurrent state ({keys.prefix}{key}): not covered")
    return keys


def _num_heads(keys: ConfigKeys) -> int:
    return max(keys.per_layer("attention.head_count", keys.num_layers("block_count")))


def _kv_layers(keys: ConfigKeys, num_layers: int, num_heads: int) -> tuple[KvLayer, ...]:
    windows = _windows(keys, num_layers)
    if keys.has("attention.kv_lora_rank"):
        latent = keys.count("attention.kv_lora_rank") + keys.count("rope.dimension_count")
        return tuple(KvLayer(1, latent, 0, window) for window in windows)
    default_dim = keys.count("embedding_length") // num_heads
    key_dim = keys.count("attention.key_length", default_dim)
    value_dim = keys.count("attention.value_length", default_dim)
    counts = keys.per_layer("attention.head_count_kv", num_layers, num_heads)
    return tuple(
        KvLayer(count, key_dim, value_dim, window)
        for count, window in zip(counts, windows, strict=True)
    )


def _windows(keys: ConfigKeys, num_layers: int) -> list[int | None]:
    if not keys.amount("attention.sliding_window"):
        return [None] * num_layers
    window = keys.count("attention.sliding_window")
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):  # one flag for each layer
        if len(pattern) != num_layers:
            raise keys.fail(f"{len(pattern)} windows are listed for {num_layers} layers")
        return [window if is_bounded else None for is_bounded in pattern]
    period = pattern or PERIODS.get(keys.prefix.removesuffix("."), 0)
    return [None if period and (layer + 1) % period == 0 else window for layer in range(num_layers)]


def _ffn_size(keys: ConfigKeys, num_layers: int) -> int:
    if keys.has("expert_feed_forward_length"):
        return keys.count("expert_feed_forward_length") * keys.count("expert_used_count", 1)
    dense = max(keys.per_layer("feed_forward_length", num_layers))
    return dense * keys.count("expert_used_count", 1)


def _vocab_size(keys: ConfigKeys, file: GgufShapes) -> int:
    embedding = file.shapes.get(EMBEDDING)
    if embedding is None or len(embedding) != 2:
        raise keys.fail(f"tensor {EMBEDDING!r} is missing or not a matrix")
    return embedding[0]


def _is_linear(name: str, shape: tuple[int, ...]) -> bool:
    """What a weight format applies to: matrices, but not the embedding and the output head."""
    return len(shape) > 1 and name not in {EMBEDDING, HEAD}
