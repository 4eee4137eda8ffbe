"""The shape of a model as far as memory goes: what layers keep of a token, what weights take.

Owns the sizes of number formats. Does not know files, GPUs or how much of anything there is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Bytes of an element of the KV cache. nvfp4 is not here: its blocks carry scales.
KV_ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
KV_DTYPES = (*KV_ELEMENT_BYTES, "nvfp4")
MLA_KV_DTYPES = ("fp32", "fp16", "bf16", "fp8")
NVFP4_BLOCK_LEN = 16  # elements that share one scale of one byte

# Bits of a weight, its share of the scales included: int4 has a 16-bit scale for 128 weights,
# nvfp4 an 8-bit one for 16, mxfp4 an 8-bit one for 32.
WEIGHT_BITS = {
    "fp32": 32.0,
    "fp16": 16.0,
    "bf16": 16.0,
    "fp8": 8.0,
    "int8": 8.0,
    "int4": 4.125,
    "nvfp4": 4.5,
    "mxfp4": 4.25,
}
AS_IS = "as-is"
UNQUANTIZED_BITS = 16.0


@dataclass(frozen=True, slots=True)
class Split:
    """A model over GPUs: each layer over `tensor` of them, the layers over `pipeline` stages."""

    tensor: int = 1
    pipeline: int = 1

    @property
    def num_gpus(self) -> int:
        return self.tensor * self.pipeline


WHOLE = Split()


@dataclass(frozen=True, slots=True)
class KvLayer:
    """What one layer keeps of a token: a key and a value for each head.

    MLA keeps one latent vector instead: one head, `key_dim` its length, `value_dim` 0.
    `window`: the layer looks back this many tokens only; None: at all of them.
    """

    num_kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None

    def num_bytes_per_token(self, dtype: str, tensor_parallel: int = 1) -> int:
        """On one GPU. Heads that do not divide evenly are replicated, as a fraction cannot be."""
        num_heads = math.ceil(self.num_kv_heads / tensor_parallel)
        return num_heads * (kv_vector_bytes(self.key_dim, dtype) + self._value_bytes(dtype))

    def _value_bytes(self, dtype: str) -> int:
        return kv_vector_bytes(self.value_dim, dtype) if self.value_dim else 0


@dataclass(frozen=True, slots=True)
class ModelShape:
    """`layers` are those with attention, in order. `num_linear_params` are what a weight format
    applies to; `num_other_params` (embedding, head, norms) stay in 16 bits, as quantisers leave
    them.

    `ffn_size`: widest layer a token passes, of all its experts together. `stored_weight_bytes`:
    exact size of the files, None if they are not there. `stored_kv_dtype`: what the checkpoint
    asks for.
    """

    name: str
    layers: tuple[KvLayer, ...]
    num_heads: int
    hidden_size: int
    ffn_size: int
    vocab_size: int
    max_positions: int
    num_linear_params: int
    num_other_params: int
    stored_weight_dtype: str
    stored_weight_bytes: int | None = None
    stored_kv_dtype: str | None = None
    is_mla: bool = False
    notes: tuple[str, ...] = ()

    @property
    def num_params(self) -> int:
        return self.num_linear_params + self.num_other_params

    @property
    def num_kv_heads(self) -> int:
        return max(layer.num_kv_heads for layer in self.layers)

    def kv_bytes_per_token(self, dtype: str, split: Split = WHOLE) -> int:
        """On the GPU that keeps most of a token."""
        return _layer_bytes(self.stage_layers(dtype, split), dtype, split)

    def stage_layers(self, dtype: str, split: Split) -> tuple[KvLayer, ...]:
        """Layers of the stage that keeps most: it decides for all how many blocks there are.

        The first stages take a layer more where the division leaves a rest.
        """
        size, rest = divmod(len(self.layers), split.pipeline)
        starts = [stage * size + min(stage, rest) for stage in range(split.pipeline + 1)]
        stages = [self.layers[a:b] for a, b in zip(starts, starts[1:], strict=False)]
        return max(stages, key=lambda layers: _layer_bytes(layers, dtype, split))

    def weight_bytes(self, dtype: str) -> int:
        """`as-is`: the files' size where they are there, else the checkpoint's own format."""
        if dtype == AS_IS and self.stored_weight_bytes is not None:
            return self.stored_weight_bytes
        bits = WEIGHT_BITS[self.stored_weight_dtype if dtype == AS_IS else dtype]
        others = self.num_other_params * max(bits, UNQUANTIZED_BITS)
        return math.ceil((self.num_linear_params * bits + others) / 8)


def _layer_bytes(layers: tuple[KvLayer, ...], dtype: str, split: Split) -> int:
    return sum(layer.num_bytes_per_token(dtype, split.tensor) for layer in layers)


def kv_vector_bytes(num_elements: int, dtype: str) -> int:
    """One key or value vector of one head. nvfp4: 4 bits an element and a byte for every 16."""
    if dtype == "nvfp4":
        return math.ceil(num_elements / 2) + math.ceil(num_elements / NVFP4_BLOCK_LEN)
    return num_elements * KV_ELEMENT_BYTES[dtype]
