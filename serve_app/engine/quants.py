"""The tensor encodings of a GGUF file that this engine reads, each as a float32 decoder.

A quantised row is cut into blocks of 32 values. A decoder takes (blocks, block_bytes) uint8 and
returns (blocks, block_len) float32, computed in float32 in the order the format defines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class QuantFormat:
    name: str
    block_len: int
    """Values in one block."""
    block_bytes: int
    dequantize: Callable[[Bytes], Floats]


def _f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    widened: Floats = (blocks.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    return widened


def _nibbles(packed: Bytes) -> Bytes:
    """(blocks, 16) bytes to (blocks, 32): all low halves first, then all high halves."""
    return np.concatenate((packed & np.uint8(15), packed >> np.uint8(4)), axis=1)


def _half(blocks: Bytes, start: int) -> Floats:
    scale: Floats = blocks[:, start : start + 2].copy().view("<f2").astype(np.float32)
    return scale


def _q4_0(blocks: Bytes) -> Floats:
    codes = _nibbles(blocks[:, 2:]).astype(np.int8) - np.int8(8)
    values: Floats = codes.astype(np.float32)
    values *= _half(blocks, 0)
    return values


def _q4_1(blocks: Bytes) -> Floats:
    values = _nibbles(blocks[:, 4:]).astype(np.float32)
    values *= _half(blocks, 0)
    values += _half(blocks, 2)
    return values


def _q8_0(blocks: Bytes) -> Floats:
    values: Floats = blocks[:, 2:].view(np.int8).astype(np.float32)
    values *= _half(blocks, 0)
    return values


QUANT_FORMATS = {
    0: QuantFormat("F32", 1, 4, _f32),
    1: QuantFormat("F16", 1, 2, _f16),
    2: QuantFormat("Q4_0", 32, 18, _q4_0),
    3: QuantFormat("Q4_1", 32, 20, _q4_1),
    8: QuantFormat("Q8_0", 32, 34, _q8_0),
    30: QuantFormat("BF16", 1, 2, _bf16),
}
