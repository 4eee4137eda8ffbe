"""Which layers of a model look back a bounded number of tokens, by what config.json says.

Owns the conventions of the model families. Does not know what a layer keeps.
"""

from __future__ import annotations

from serve_app.config_keys import ConfigKeys

BOUNDED = {"sliding_attention", "chunked_attention"}
UNBOUNDED = {"full_attention", "global_attention", "attention"}
# Period of families that do not list their layers; the last of each period looks at everything.
PERIODS = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4, "gpt_oss": 2}
PERIOD_KEYS = ("sliding_window_pattern", "_sliding_window_pattern")


def layer_windows(keys: ConfigKeys, num_layers: int) -> list[int | None]:
    """Tokens for each layer, None where it looks at everything. Raises ModelFileError."""
    if keys.has("layer_types"):
        return [_typed_window(keys, kind) for kind in _layer_types(keys, num_layers)]
    if not keys.has("sliding_window") or not keys.flag("use_sliding_window", True):
        return [None] * num_layers
    window = keys.count("sliding_window")
    if keys.has("use_sliding_window"):  # Qwen: the first max_window_layers see everything
        first = keys.amount("max_window_layers")
        return [window if layer >= first else None for layer in range(num_layers)]
    period = _period(keys)
    return [None if period and (layer + 1) % period == 0 else window for layer in range(num_layers)]


def _period(keys: ConfigKeys) -> int:
    """0: every layer has the window."""
    for key in PERIOD_KEYS:
        if keys.has(key):
            return keys.count(key)
    return PERIODS.get(keys.word("model_type"), 0)


def _layer_types(keys: ConfigKeys, num_layers: int) -> list[str]:
    kinds = keys.items("layer_types")
    if len(kinds) != num_layers:
        raise keys.fail(f"layer_types lists {len(kinds)} layers, not {num_layers}")
    return [str(kind) for kind in kinds]


def _typed_window(keys: ConfigKeys, kind: str) -> int | None:
    if kind in UNBOUNDED:
        return None
    if kind not in BOUNDED:
        raise keys.fail(f"layer type {kind!r} keeps another kind of state: not covered")
    return keys.count("sliding_window" if kind == "sliding_attention" else "attention_chunk_size")
