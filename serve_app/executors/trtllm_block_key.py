"""TensorRT-LLM's own block hash (v1_block_key), only to tell which namespace a block belongs to.

Events of 1.2 carry neither the salt nor the LoRA adapter of a block, but both are in its hash.
Whether a running engine hashes this way is found out at start, with a block whose tokens are known;
it is never assumed. Nothing is routed by these hashes: `controllers.blocks` has ours.
"""

from __future__ import annotations

from collections.abc import Sequence

_MASK_64 = 2**64 - 1
_MASK_32 = 2**32 - 1
_PARENT = 0xBF58476D1CE4E5B9


def block_key(
    tokens: Sequence[int],
    parent: int = 0,
    salt_id: int | None = None,
    lora_id: int | None = None,
) -> int:
    """Unsigned 64-bit. `parent` 0: the first block, the only one in which the salt counts."""
    seed = len(tokens) ^ ((parent * _PARENT) & _MASK_64)
    if parent == 0 and salt_id is not None:
        seed = _mix_64(seed, salt_id)
    for token in tokens:
        seed = _mix_32(seed, token)
    return seed if lora_id is None else _mix_64(seed, lora_id)


def _mix_32(seed: int, value: int) -> int:
    for _ in range(2):
        value = (((value >> 16) ^ value) * 0x45D9F3B) & _MASK_32
    value = (((value >> 16) ^ value) + 0x9E3779B9) & _MASK_32
    return _combine(seed, value)


def _mix_64(seed: int, value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK_64
    value ^= value >> 31
    return _combine(seed, (value + 0x9E3779B9) & _MASK_64)


def _combine(seed: int, value: int) -> int:
    return seed ^ ((value + (seed << 6) + (seed >> 2)) & _MASK_64)
