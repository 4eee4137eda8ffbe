"""A tiny random Llama as a GGUF file, and a plain forward pass over its raw tensors.

The reference has no blocks, no packing and no batch: float64, full attention, rotary pairs
(2i, 2i + 1) as the file stores them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.gguf_writer import GgufWriter

VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN = 97, 24, 3, 6, 2, 4, 40
ROPE_BASE, EPS, CONTEXT = 1000.0, 1e-5, 512

Tensors = dict[str, np.ndarray]


def metadata(changes: dict[str, Any]) -> dict[str, Any]:
    """Keys of the tiny model, some changed; None removes a key."""
    keys: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": LAYERS,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FFN,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.key_length": HEAD_DIM,
        "llama.rope.freq_base": ROPE_BASE,
        "llama.attention.layer_norm_rms_epsilon": EPS,
    }
    keys.update(changes)
    return {key: value for key, value in keys.items() if value is not None}


def random_tensors(*, kv_heads: int = KV_HEADS, is_tied: bool = True, seed: int = 0) -> Tensors:
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * 2 / columns**0.5).astype(np.float32)

    tensors = {"token_embd.weight": matrix(VOCAB, HIDDEN) * 3}
    for i in range(LAYERS):
        tensors[f"blk.{i}.attn_norm.weight"] = matrix(1, HIDDEN)[0] + 1
        tensors[f"blk.{i}.attn_q.weight"] = matrix(HEADS * HEAD_DIM, HIDDEN)
        tensors[f"blk.{i}.attn_k.weight"] = matrix(kv_heads * HEAD_DIM, HIDDEN)
        tensors[f"blk.{i}.attn_v.weight"] = matrix(kv_heads * HEAD_DIM, HIDDEN)
        tensors[f"blk.{i}.attn_output.weight"] = matrix(HIDDEN, HEADS * HEAD_DIM)
        tensors[f"blk.{i}.ffn_norm.weight"] = matrix(1, HIDDEN)[0] + 1
        tensors[f"blk.{i}.ffn_gate.weight"] = matrix(FFN, HIDDEN)
        tensors[f"blk.{i}.ffn_up.weight"] = matrix(FFN, HIDDEN)
        tensors[f"blk.{i}.ffn_down.weight"] = matrix(HIDDEN, FFN)
    tensors["output_norm.weight"] = matrix(1, HIDDEN)[0] + 1
    if not is_tied:
        tensors["output.weight"] = matrix(VOCAB, HIDDEN)
    return tensors


def write_tiny_llama(path: Path, tensors: Tensors, **changes: Any) -> Path:
    writer = GgufWriter(metadata=metadata(changes))
    for name, values in tensors.items():
        writer.add_float32(name, values)
    return writer.write(path)


def plain_logits(
    tensors: Tensors,
    token_ids: list[int],
    *,
    num_layers: int = LAYERS,
    head_dim: int = HEAD_DIM,
    rope_base: float = ROPE_BASE,
    eps: float = EPS,
    window: int | None = None,
) -> np.ndarray:
    """(tokens, vocab) float64 logits of one sequence, all positions at once."""
    x = tensors["token_embd.weight"][token_ids].astype(np.float64)
    for i in range(num_layers):
        w = {n: tensors[f"blk.{i}.{n}.weight"] for n in _LAYER_NAMES}
        h = _plain_norm(x, w["attn_norm"], eps)
        x = x + _plain_attention(h, w, head_dim, rope_base, window or len(token_ids))
        h = _plain_norm(x, w["ffn_norm"], eps)
        gate = h @ w["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T
    head = tensors.get("output.weight", tensors["token_embd.weight"])
    return _plain_norm(x, tensors["output_norm.weight"], eps) @ head.T


_ATTENTION = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output")
_LAYER_NAMES = (*_ATTENTION, "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")


def _plain_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def _plain_rotate(x: np.ndarray, base: float) -> np.ndarray:
    """x (heads, tokens, head_dim) with neighbouring pairs."""
    _, tokens, dim = x.shape
    angles = np.outer(np.arange(tokens), base ** (-np.arange(0, dim, 2) / dim))
    rotated = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
    return np.stack((rotated.real, rotated.imag), -1).reshape(x.shape)


def _plain_attention(
    h: np.ndarray, w: dict[str, np.ndarray], head_dim: int, base: float, window: int
) -> np.ndarray:
    tokens = len(h)
    q, k, v = (
        (h @ w[n].T).reshape(tokens, -1, head_dim).swapaxes(0, 1)
        for n in ("attn_q", "attn_k", "attn_v")
    )
    group = len(q) // len(k)
    q, k = _plain_rotate(q, base), np.repeat(_plain_rotate(k, base), group, 0)
    scores = q @ k.swapaxes(1, 2) / head_dim**0.5
    is_seen = np.tri(tokens, dtype=bool) & ~np.tri(tokens, k=-window, dtype=bool)
    scores = np.where(is_seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed = weights @ np.repeat(v, group, 0)
    return mixed.swapaxes(0, 1).reshape(tokens, -1) @ w["attn_output"].T
