"""BLAKE3 of short inputs, by its specification. TensorRT-LLM names cache salts by it."""

from __future__ import annotations

import struct

MAX_BYTES = 1024  # one chunk: longer inputs need a tree
BLOCK_BYTES = 64
MASK = 0xFFFFFFFF
START, END, ROOT = 1, 2, 8
IV = (
    0x6A09E667,
    0xBB67AE85,
    0x3C6EF372,
    0xA54FF53A,
    0x510E527F,
    0x9B05688C,
    0x1F83D9AB,
    0x5BE0CD19,
)
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
COLUMNS_AND_DIAGONALS = (
    (0, 4, 8, 12),
    (1, 5, 9, 13),
    (2, 6, 10, 14),
    (3, 7, 11, 15),
    (0, 5, 10, 15),
    (1, 6, 11, 12),
    (2, 7, 8, 13),
    (3, 4, 9, 14),
)


def blake3(data: bytes) -> bytes:
    """32 bytes. Raises ValueError for more than MAX_BYTES."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"{len(data)} bytes, at most {MAX_BYTES} are supported")
    blocks = [data[at : at + BLOCK_BYTES] for at in range(0, max(1, len(data)), BLOCK_BYTES)]
    state = list(IV)
    for at, block in enumerate(blocks):
        is_last = at == len(blocks) - 1
        flags = (START if at == 0 else 0) | (END | ROOT if is_last else 0)
        state = _compress(state, block, flags)
    return struct.pack("<8I", *state)


def _compress(chaining: list[int], block: bytes, flags: int) -> list[int]:
    words = list(struct.unpack("<16I", block.ljust(BLOCK_BYTES, b"\0")))
    state = [*chaining, *IV[:4], 0, 0, len(block), flags]
    for _ in range(7):
        for at, (a, b, c, d) in enumerate(COLUMNS_AND_DIAGONALS):
            _mix(state, a, b, c, d, words[2 * at], words[2 * at + 1])
        words = [words[source] for source in PERMUTATION]
    return [state[i] ^ state[i + 8] for i in range(8)]


def _mix(state: list[int], a: int, b: int, c: int, d: int, x: int, y: int) -> None:
    for word, first, second in ((x, 16, 12), (y, 8, 7)):
        state[a] = (state[a] + state[b] + word) & MASK
        state[d] = _rotated(state[d] ^ state[a], first)
        state[c] = (state[c] + state[d]) & MASK
        state[b] = _rotated(state[b] ^ state[c], second)


def _rotated(value: int, by: int) -> int:
    return (value >> by | value << (32 - by)) & MASK
