"""How the tokens of a block are compared.

A token is its id, or its id and an extra id that says what it stands for: the content behind a
placeholder, such as an image. Prompts with and without extra ids share nothing.
"""

from __future__ import annotations

import array
import struct
from typing import NamedTuple

TOKEN_BYTES = 4
_TOKEN_WITH_EXTRA_ID = struct.Struct("<IQ")
_EXTRA_IDS_SEED = 0x9D39_247E_3377_6D41  # apart from every salt, so that hashes do not meet


class Namespace(NamedTuple):
    """Only prompts of one namespace share blocks. `token_bytes`: of one token in a key."""

    salt: int
    has_extra_ids: bool = False

    @property
    def token_bytes(self) -> int:
        return _TOKEN_WITH_EXTRA_ID.size if self.has_extra_ids else TOKEN_BYTES

    @property
    def hash_seed(self) -> int:
        return self.salt ^ _EXTRA_IDS_SEED if self.has_extra_ids else self.salt


def key_with_extra_ids(tokens: array.array[int], extra_ids: array.array[int]) -> bytes:
    """12 bytes a token; of tokens without an extra id it is 0, as of generated ones."""
    padded = [*extra_ids, *[0] * (len(tokens) - len(extra_ids))]
    pack = _TOKEN_WITH_EXTRA_ID.pack
    return b"".join(pack(token, extra) for token, extra in zip(tokens, padded, strict=True))
