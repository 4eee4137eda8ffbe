"""Tokens to block hashes. The only hashing in the repository.

Owns the scheme that ingress, executors and routing tables must share. Knows no model, cache or log.

1. hash[i] covers tokens[0 : (i + 1) * block_size] and the salt: a hash names a whole prefix.
2. hash[i] = XXH3_64(block i as little-endian 32-bit ids, seed = hash[i - 1]); the seed of block 0
   is the salt, 0 for none.
3. The length enters XXH3, so a partial block differs from every full block that it starts.
4. Nothing depends on the process, PYTHONHASHSEED or the platform. Any change here is a new scheme:
   change HASH_SCHEME with it, and tables refuse workers that still use the old one.
5. Hashes route requests and key events. They are not cryptographic: whoever serves cached data for
   a hash compares the tokens too. Only the salt, which is, keeps tenants apart.
"""

from __future__ import annotations

import array
import hashlib
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from controllers.errors import InvalidRequest, SettingsError

HASH_SCHEME = "cachelane-xxh3-1"

TokenArray: TypeAlias = npt.NDArray[np.uint32]

_TOKEN = np.dtype("<u4")
_MAX_TOKEN = 2**32 - 1
_digest = xxhash.xxh3_64_intdigest


def as_token_array(
    tokens: Sequence[int] | npt.NDArray[np.integer] | bytes, field: str = "prompt"
) -> TokenArray:
    """One-dimensional little-endian uint32 array of token ids.

    `bytes` are read as little-endian 32-bit ids; they and a uint32 array are not copied. Raises
    InvalidRequest naming `field` and the index of an id that is no integer of 0 ... 2**32 - 1.
    """
    if isinstance(tokens, bytes):
        if len(tokens) % 4:
            raise InvalidRequest(field, f"{len(tokens)} bytes are not whole 32-bit token ids")
        return np.frombuffer(tokens, dtype=_TOKEN)
    if isinstance(tokens, np.ndarray):
        return _from_ndarray(tokens, field)
    try:  # array.array is three times as fast as numpy here, and refuses floats
        return np.frombuffer(array.array("I", tokens), dtype=np.uint32).astype(_TOKEN, copy=False)
    except (TypeError, OverflowError):
        raise _bad_token(tokens, field) from None


def block_hashes(
    tokens: TokenArray, block_size: int, salt: int = 0, parent: int | None = None
) -> list[int]:
    """Hash of every full block, in order; tokens after the last full block are left out.

    With `parent` the tokens continue the prefix that `parent` names. About 60 ns a block.
    """
    if block_size < 1:
        raise SettingsError(f"block_size is {block_size}, must be at least 1")
    num_full = len(tokens) // block_size
    full = np.ascontiguousarray(tokens[: num_full * block_size], dtype=_TOKEN)
    blocks = full.view(f"V{4 * block_size}").tolist()
    seed = salt if parent is None else parent
    return [seed := _digest(block, seed) for block in blocks]


def block_hash(parent: int | None, tokens: TokenArray, salt: int = 0) -> int:
    """Hash of one block, full or partial, after the prefix `parent` (None: the first block).

    Equals block_hashes for a full block. The salt counts only in the first block: its children
    inherit it through their parent.
    """
    if len(tokens) == 0:
        raise InvalidRequest("tokens", "a block has at least one token")
    seed = salt if parent is None else parent
    return _digest(np.ascontiguousarray(tokens, dtype=_TOKEN).tobytes(), seed)


def num_common_blocks(one: Sequence[int], other: Sequence[int], at: int = 0) -> int:
    """Leading hashes of `one` that `other` has from `at` on. Equal ones never come after others, as
    a hash is of all that is before it, so halving finds their end."""
    low, high = 0, min(len(one), len(other) - at)
    if high and one[high - 1] == other[at + high - 1]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[at + middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


def salt_of(text: str | None) -> int:
    """Unsigned 64-bit salt of a tenant's secret or name; 0, no salt, for None only."""
    if text is None:
        return 0
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=b"cachelane-salt").digest()
    return int.from_bytes(digest, "little") or 1


def _from_ndarray(tokens: npt.NDArray[np.integer], field: str) -> TokenArray:
    if tokens.ndim != 1:
        raise InvalidRequest(field, f"token ids have shape {tokens.shape}, must be one-dimensional")
    if tokens.dtype.kind not in "ui" and len(tokens):
        raise InvalidRequest(field, f"token ids are {tokens.dtype}, must be integers")
    if tokens.dtype != _TOKEN and len(tokens):
        bad = np.flatnonzero((tokens < 0) | (tokens > _MAX_TOKEN))
        if len(bad):
            raise InvalidRequest(f"{field}[{bad[0]}]", _range_message(int(tokens[bad[0]])))
    return np.ascontiguousarray(tokens, dtype=_TOKEN)


def _bad_token(tokens: object, field: str) -> InvalidRequest:
    for index, token in enumerate(tokens if isinstance(tokens, Sequence) else ()):
        if not isinstance(token, int | np.integer):
            return InvalidRequest(f"{field}[{index}]", f"{token!r} is not an integer token id")
        if not 0 <= token <= _MAX_TOKEN:
            return InvalidRequest(f"{field}[{index}]", _range_message(int(token)))
    return InvalidRequest(field, f"{type(tokens).__name__} is not a sequence of token ids")


def _range_message(token: int) -> str:
    return f"token id {token} is out of range 0 ... {_MAX_TOKEN}"
