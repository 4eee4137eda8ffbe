"""The forward pass of a Llama-family model in NumPy, float32, over a paged KV pool.

Owns: the arithmetic of a step. Does not know: sequences beyond the batch, sampling, block reuse.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from serve_app.engine.attention import attend, plan_attention
from serve_app.engine.batch import Batch, FloatArray, IntArray, KvPool
from serve_app.engine.config import ModelConfig
from serve_app.engine.weights import LayerWeights, ModelWeights, load_model


class NumpyModel:
    """See `batch.Model` for the contract of `forward`."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        *,
        block_size: int,
        num_blocks: int,
        num_host_blocks: int = 0,
    ) -> None:
        self.config = config
        self.weights = weights
        self.pool = KvPool(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            block_size=block_size,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
        )
        self._rotary_cos, self._rotary_sin = _rotary_tables(config)

    @classmethod
    def load(
        cls, path: Path, *, block_size: int, num_blocks: int, num_host_blocks: int = 0
    ) -> NumpyModel:
        """Loads a GGUF file; raises ModelFileError."""
        config, weights = load_model(path)
        return cls(
            config,
            weights,
            block_size=block_size,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
        )

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def max_seq_len(self) -> int:
        return self.config.context_len

    @property
    def attention_window(self) -> int | None:
        return self.config.attention_window

    def forward(self, batch: Batch) -> FloatArray:
        tasks = plan_attention(batch, self.pool.block_size, self.config.attention_window)
        rotary = self._rotary_cos[batch.positions], self._rotary_sin[batch.positions]
        eps = np.float32(self.config.norm_eps)
        last_layer = self.config.num_layers - 1
        x = self._embed(batch.token_ids)
        for index, layer in enumerate(self.weights.layers):
            qkv = layer.qkv(_rms_norm(x, layer.attention_norm, eps))
            queries, keys, values = self._split_heads(qkv, *rotary)
            self._store(batch.slots, index, keys, values)
            mixed = attend(queries, tasks, self.pool, index).reshape(len(x), -1)
            if index == last_layer:
                x, mixed = x[batch.logit_rows], mixed[batch.logit_rows]
            x = x + layer.attention_out(mixed)
            x += _feed_forward(layer, _rms_norm(x, layer.ffn_norm, eps))
        return self.weights.head(_rms_norm(x, self.weights.final_norm, eps))

    def _embed(self, token_ids: IntArray) -> FloatArray:
        if self.weights.embedding is None:
            return self.weights.head.rows(token_ids)
        return self.weights.embedding[token_ids]

    def _split_heads(
        self, qkv: FloatArray, cos: FloatArray, sin: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(T, all heads * head_dim) to scaled queries, keys and values (T, heads, head_dim)."""
        config = self.config
        heads = qkv.reshape(len(qkv), -1, config.head_dim)
        num_rotated = config.num_heads + config.num_kv_heads
        rotated = _rotate(heads[:, :num_rotated], cos, sin)
        queries = rotated[:, : config.num_heads] * np.float32(config.head_dim**-0.5)
        return queries, rotated[:, config.num_heads :], heads[:, num_rotated:]

    def _store(self, slots: IntArray, layer: int, keys: FloatArray, values: FloatArray) -> None:
        blocks, offsets = np.divmod(slots, self.pool.block_size)
        self.pool.keys[blocks, layer, :, :, offsets] = keys
        self.pool.values[blocks, layer, offsets] = values


def _rotary_tables(config: ModelConfig) -> tuple[FloatArray, FloatArray]:
    """Cosines and sines (positions, 1, head_dim / 2) of every rotary angle."""
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / config.head_dim
    frequencies = (1.0 / np.float32(config.rope_base) ** exponents).astype(np.float32)
    positions = np.arange(config.context_len, dtype=np.float32)
    angles = np.outer(positions, frequencies)[:, None]
    return np.cos(angles), np.sin(angles)


def _rotate(heads: FloatArray, cos: FloatArray, sin: FloatArray) -> FloatArray:
    half = heads.shape[-1] // 2
    first, second = heads[..., :half], heads[..., half:]
    out = np.empty(heads.shape, np.float32)
    out[..., :half] = first * cos - second * sin
    out[..., half:] = second * cos + first * sin
    return out


def _rms_norm(x: FloatArray, weight: FloatArray, eps: np.float32) -> FloatArray:
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    normed: FloatArray = x / np.sqrt(mean_square + eps) * weight
    return normed


def _feed_forward(layer: LayerWeights, x: FloatArray) -> FloatArray:
    """SwiGLU: down(silu(gate) * up)."""
    gate, up = np.split(layer.gate_up(x), 2, axis=1)
    activated = np.exp(-gate)
    activated += 1
    np.divide(gate, activated, out=activated)
    activated *= up
    return layer.down(activated)
