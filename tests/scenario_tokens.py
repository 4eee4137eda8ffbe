"""Prompts and hashes as the numbered scenarios of the cache manager need them."""

from __future__ import annotations

from controllers.blocks import as_token_array, block_hash, block_hashes
from controllers.events import hexes_of


def upto(last: int) -> list[int]:
    """[0, 1, ... last]"""
    return list(range(last + 1))


def hashes(tokens: list[int], salt: int = 0, block_size: int = 4) -> list[str]:
    """Of all blocks, a partial last one included."""
    full = block_hashes(as_token_array(tokens), block_size, salt)
    rest = tokens[len(full) * block_size :]
    if rest:
        parent = full[-1] if full else None
        full.append(block_hash(parent, as_token_array(rest), salt))
    return hexes_of(full)
