"""Block hashes as TensorRT-LLM's engines say them in events.

Two algorithms. `v1_block_key`: 64 bits, not cryptographic, chained through the parent; a salt
enters the first block only, a LoRA task id every block. `v2_sha256`: 32 bytes, or their first 8 as
a number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

U32 = 0xFFFFFFFF
U64 = 0xFFFFFFFFFFFFFFFF
MULTIPLIER = 0xBF58476D1CE4E5B9


def v1_block_key(
    tokens: Iterable[int],
    parent: int = 0,
    *,
    lora_id: int | None = None,
    salt_id: int | None = None,
) -> int:
    """Unsigned 64-bit. `parent` 0: the first block."""
    tokens = list(tokens)
    seed = len(tokens) ^ (parent * MULTIPLIER & U64)
    if not parent and salt_id is not None:
        seed = _mix64(seed, salt_id)
    for token in tokens:
        seed = _mix32(seed, token)
    return seed if lora_id is None else _mix64(seed, lora_id)


def v2_root(*, lora_id: int | None = None, salt_id: int | None = None) -> bytes:
    """The digest that stands before every first block of a scope."""
    present = [value for value in (lora_id, salt_id) if value is not None]
    mask = (lora_id is not None) | (salt_id is not None) << 1
    packed = b"".join(value.to_bytes(8, "little") for value in present)
    return hashlib.sha256(bytes([mask]) + packed).digest()


def v2_sha256(tokens: Iterable[int], parent: bytes) -> bytes:
    packed = b"".join(token.to_bytes(4, "little") for token in tokens)
    return hashlib.sha256(parent + packed).digest()


def v2_sha256_64(digest: bytes) -> int:
    """The short form of a v2_sha256 digest."""
    return int.from_bytes(digest[:8], "big")


def _mix32(seed: int, value: int) -> int:
    value &= U32
    value = ((value >> 16) ^ value) * 0x45D9F3B & U32
    value = ((value >> 16) ^ value) * 0x45D9F3B & U32
    value = ((value >> 16) ^ value) + 0x9E3779B9 & U32
    return _combine(seed, value)


def _mix64(seed: int, value: int) -> int:
    value = (value ^ value >> 30) * MULTIPLIER & U64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & U64
    value ^= value >> 31
    return _combine(seed, value + 0x9E3779B9 & U64)


def _combine(seed: int, value: int) -> int:
    return seed ^ (value + (seed << 6) + (seed >> 2)) & U64
