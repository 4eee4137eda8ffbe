"""Parameters of a decoder, counted from its config.json: dense or experts, any attention.

Exact for the families in KNOWN, up to router biases; others are counted as a Llama of their shape.
Does not know bytes.
"""

from __future__ import annotations

from serve_app.config_keys import ConfigKeys

KNOWN = {
    *("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "phi3"),
    *("gemma", "gemma2", "gemma3_text", "deepseek_v2", "deepseek_v3", "gpt_oss"),
}
NORMS_PER_LAYER = {"gemma2": 4, "gemma3_text": 4}
HEAD_NORMS = {"qwen3", "qwen3_moe", "gemma3_text"}  # a norm of its own for queries and for keys
QKV_BIAS = {"qwen2", "qwen2_moe"}
TIED = {"gemma", "gemma2", "gemma3_text", "cohere", "cohere2"}
NUM_EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts")
ACTIVE_EXPERTS = ("num_experts_per_tok", "num_experts_per_token")


def count_parameters(keys: ConfigKeys) -> tuple[int, int]:
    """(linear layers of the decoder, everything else: embedding, head, norms, biases)."""
    num_layers, hidden = keys.num_layers("num_hidden_layers"), keys.count("hidden_size")
    model_type = keys.word("model_type")
    linear = num_layers * _attention(keys)
    linear += sum(_feed_forward(keys, layer) for layer in range(num_layers))
    embedding = keys.count("vocab_size") * hidden
    is_tied = keys.flag("tie_word_embeddings", model_type in TIED)
    norms = num_layers * (NORMS_PER_LAYER.get(model_type, 2) * hidden + _attention_extras(keys))
    return linear, embedding * (1 if is_tied else 2) + norms + hidden


def active_ffn_size(keys: ConfigKeys) -> int:
    """Inner width that one token passes in the widest layer: of all its experts together."""
    sizes = {_active_width(keys, layer) for layer in range(keys.num_layers("num_hidden_layers"))}
    return max(sizes)


def head_dim_of(keys: ConfigKeys) -> int:
    hidden, num_heads = keys.count("hidden_size"), keys.count("num_attention_heads")
    if not keys.has("head_dim") and hidden % num_heads:
        raise keys.fail(f"hidden_size {hidden} does not divide into {num_heads} heads: no head_dim")
    return keys.count("head_dim", hidden // num_heads)


def _kv_heads(keys: ConfigKeys) -> int:
    value = keys.get("num_key_value_heads")
    if isinstance(value, list):
        return round(sum(value) / len(value))
    return keys.count("num_key_value_heads", keys.count("num_attention_heads"))


def _attention(keys: ConfigKeys) -> int:
    if keys.has("kv_lora_rank"):
        return _latent_attention(keys)
    hidden, head_dim = keys.count("hidden_size"), head_dim_of(keys)
    return 2 * hidden * head_dim * (keys.count("num_attention_heads") + _kv_heads(keys))


def _latent_attention(keys: ConfigKeys) -> int:
    """Queries, keys and values through their low ranks, and the output."""
    hidden, num_heads = keys.count("hidden_size"), keys.count("num_attention_heads")
    nope, rope = keys.count("qk_nope_head_dim"), keys.count("qk_rope_head_dim")
    value, kv_rank = keys.count("v_head_dim"), keys.count("kv_lora_rank")
    q_rank = keys.amount("q_lora_rank")
    heads = num_heads * (nope + rope)
    queries = q_rank * (hidden + heads) if q_rank else hidden * heads
    keys_values = hidden * (kv_rank + rope) + kv_rank * num_heads * (nope + value)
    return queries + keys_values + num_heads * value * hidden


def _attention_extras(keys: ConfigKeys) -> int:
    """Norms and biases inside one layer's attention."""
    if keys.has("kv_lora_rank"):
        return keys.count("kv_lora_rank") + keys.amount("q_lora_rank")
    model_type, dim = keys.word("model_type"), head_dim_of(keys)
    biases = dim * (keys.count("num_attention_heads") + 2 * _kv_heads(keys))
    extras = 2 * dim if model_type in HEAD_NORMS else 0
    if keys.flag("attention_bias", False):
        return extras + biases + keys.count("hidden_size")
    return extras + (biases if model_type in QKV_BIAS else 0)


def _first(keys: ConfigKeys, names: tuple[str, ...]) -> int:
    return next((keys.amount(name) for name in names if keys.has(name)), 0)


def _is_sparse(keys: ConfigKeys, layer: int) -> bool:
    """Whether the layer has experts. The three ways in which families leave some layers dense."""
    if not _first(keys, NUM_EXPERTS) or layer in keys.items("mlp_only_layers"):
        return False
    if layer < keys.amount("first_k_dense_replace"):
        return False
    step = _first(keys, ("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step")) or 1
    offset = 0 if keys.has("moe_layer_freq") else 1
    return (layer + offset) % step == 0


def _expert_size(keys: ConfigKeys) -> int:
    return keys.count("moe_intermediate_size", keys.count("intermediate_size"))


def _shared_size(keys: ConfigKeys) -> int:
    """Inner width of the experts that every token passes."""
    if keys.has("shared_expert_intermediate_size"):
        return keys.amount("shared_expert_intermediate_size")
    if keys.word("model_type") == "llama4_text":
        return keys.count("intermediate_size")
    return keys.amount("n_shared_experts") * _expert_size(keys)


def _dense_size(keys: ConfigKeys) -> int:
    return keys.count("intermediate_size_mlp", keys.count("intermediate_size"))


def _feed_forward(keys: ConfigKeys, layer: int) -> int:
    """Gate, up and down; with experts also the router, and the shared expert's gate of Qwen."""
    hidden = keys.count("hidden_size")
    if not _is_sparse(keys, layer):
        return 3 * hidden * _dense_size(keys)
    num_experts = _first(keys, NUM_EXPERTS)
    experts = 3 * hidden * (num_experts * _expert_size(keys) + _shared_size(keys))
    gate = hidden if keys.has("shared_expert_intermediate_size") else 0
    return experts + hidden * num_experts + gate


def _active_width(keys: ConfigKeys, layer: int) -> int:
    if not _is_sparse(keys, layer):
        return _dense_size(keys)
    return (_first(keys, ACTIVE_EXPERTS) or 1) * _expert_size(keys) + _shared_size(keys)
