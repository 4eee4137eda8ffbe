"""From a salt's text to the number that enters block hashes."""

from __future__ import annotations

import functools

from tensorrt_llm.double.blake3 import blake3


@functools.lru_cache(maxsize=1024)
def get_cache_salt_id(cache_salt: str) -> int:
    """Unsigned 64-bit."""
    return int.from_bytes(blake3(cache_salt.encode())[:8], "little")
