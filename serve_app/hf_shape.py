"""A Hugging Face folder (config.json, perhaps weights) -> ModelShape.

Owns what the keys of config.json mean for the KV cache, and which models this arithmetic would get
wrong: those are refused. Counts parameters in hf_parameters.py; reads weights' sizes in
hf_weights.py. Loads nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from controllers.errors import ModelFileError
from controllers.model_shape import KvLayer, ModelShape
from serve_app.attention_windows import layer_windows
from serve_app.config_keys import ConfigKeys
from serve_app.hf_parameters import KNOWN, active_ffn_size, count_parameters, head_dim_of
from serve_app.hf_weights import stored_kv_dtype, stored_weight_bytes, stored_weight_dtype

CONFIG = "config.json"
LEAST_BITS = 1.5  # of a weight; files with less are pointers to files, or some are missing
# What transformers assumes when a file of these types leaves the key out.
TYPE_DEFAULTS: dict[str, dict[str, int]] = {
    "gemma": {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256},
    "gemma2": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
    },
}
# Types for which a missing num_key_value_heads means as many as query heads.
ALL_HEADS = {"llama", "phi", "gpt_neox", "stablelm", "olmo"}
# A key whose presence means a cache of another kind.
OTHER_CACHES = {
    "ssm_state_size": "a recurrent state (Mamba)",
    "mamba_d_state": "a recurrent state (Mamba)",
    "state_size": "a recurrent state (Mamba)",
    "hybrid_override_pattern": "a recurrent state (Mamba)",
    "linear_num_value_heads": "a recurrent state (linear attention)",
    "attn_layer_period": "a recurrent state (Jamba)",
    "lru_width": "a recurrent state (Griffin)",
    "linear_attn_config": "a recurrent state (linear attention)",
    "attn_type_list": "a recurrent state (linear attention)",
    "index_head_dim": "an index of its own (sparse attention)",
    "compress_ratios": "compressed blocks (sparse attention)",
    "num_kv_shared_layers": "caches shared between layers",
    "num_global_key_value_heads": "two kinds of heads",
    "global_head_dim": "two kinds of heads",
    "is_encoder_decoder": "an encoder's output",
    "cross_attention_layers": "an encoder's output",
}


def read_hf_shape(path: Path) -> ModelShape:
    """`path`: the folder or its config.json. Raises ModelFileError that names file and key."""
    file = path / CONFIG if path.is_dir() else path
    config = _read_json(file)
    keys = _text_keys(file, config)
    _refuse_other_caches(keys)
    layers = _kv_layers(keys)
    linear, other = count_parameters(keys)
    stored = stored_weight_bytes(file.parent)
    if stored is not None and stored * 8 < linear * LEAST_BITS:
        raise keys.fail(f"the weights beside it have {stored} bytes, too few to be whole")
    return ModelShape(
        name=_name(file, config),
        layers=layers,
        num_heads=keys.count("num_attention_heads"),
        hidden_size=keys.count("hidden_size"),
        ffn_size=active_ffn_size(keys),
        vocab_size=keys.count("vocab_size"),
        max_positions=keys.count("max_position_embeddings"),
        num_linear_params=linear,
        num_other_params=other,
        stored_weight_dtype=stored_weight_dtype(file, config, keys),
        stored_weight_bytes=stored,
        stored_kv_dtype=stored_kv_dtype(file, config),
        is_mla=_is_mla(keys),
        notes=_notes(config, keys, stored is not None),
    )


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise ModelFileError(f"{file} does not exist") from None
    except OSError as error:
        raise ModelFileError(f"{file}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{file} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{file} holds {type(value).__name__}, not an object")
    return value


def _text_keys(file: Path, config: dict[str, Any]) -> ConfigKeys:
    """A multi-modal config keeps its language model in `text_config`."""
    text = config.get("text_config", config.get("llm_config", config))
    if not isinstance(text, dict):
        raise ModelFileError(f"{file}: text_config is {type(text).__name__}, not an object")
    defaults = TYPE_DEFAULTS.get(str(text.get("model_type", config.get("model_type"))), {})
    return ConfigKeys(file, {**defaults, **text})


def _refuse_other_caches(keys: ConfigKeys) -> None:
    for key, what in OTHER_CACHES.items():
        if keys.get(key):
            raise keys.fail(f"keeps {what} ({key}), which this plan does not cover")


def _is_mla(keys: ConfigKeys) -> bool:
    return keys.has("kv_lora_rank")


def _kv_layers(keys: ConfigKeys) -> tuple[KvLayer, ...]:
    num_layers = keys.num_layers("num_hidden_layers")
    windows = layer_windows(keys, num_layers)
    if _is_mla(keys):
        latent = keys.count("kv_lora_rank") + keys.count("qk_rope_head_dim")
        return tuple(KvLayer(1, latent, 0, window) for window in windows)
    num_heads = keys.count("num_attention_heads")
    num_kv_heads = keys.per_layer("num_key_value_heads", num_layers, _default_kv_heads(keys))
    for count in set(num_kv_heads):
        if num_heads % count:
            raise keys.fail(f"{num_heads} heads do not divide into {count} key/value heads")
    head_dim = head_dim_of(keys)
    return tuple(
        KvLayer(count, head_dim, keys.count("v_head_dim", head_dim), window)
        for count, window in zip(num_kv_heads, windows, strict=True)
    )


def _default_kv_heads(keys: ConfigKeys) -> int:
    model_type = keys.word("model_type")
    if keys.has("num_key_value_heads") or model_type in ALL_HEADS:
        return keys.count("num_attention_heads")
    raise keys.fail(f"num_key_value_heads is missing, and {model_type!r} has no known default")


def _name(file: Path, config: dict[str, Any]) -> str:
    name = config.get("_name_or_path")
    if isinstance(name, str) and name and not Path(name).is_absolute():
        return name
    return file.absolute().parent.name


def _notes(config: dict[str, Any], keys: ConfigKeys, has_files: bool) -> tuple[str, ...]:
    """What makes the count of parameters less than exact."""
    if has_files:
        return ()
    notes = []
    model_type = keys.word("model_type")
    if model_type not in KNOWN:
        notes.append(f"a model of type {model_type!r} is counted as a Llama")
    if "text_config" in config or "llm_config" in config:
        notes.append("only the language model's parameters are counted, not vision or audio")
    return tuple(notes)
