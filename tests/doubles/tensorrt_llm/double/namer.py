"""Which hash algorithm an engine names its blocks by."""

from __future__ import annotations

from tensorrt_llm.double.hashes import v1_block_key, v2_root, v2_sha256, v2_sha256_64
from tensorrt_llm.double.requests import EngineRequest


class Namer:
    """`algorithm`: v1_block_key, v2_sha256 or v2_sha256_64."""

    def __init__(self, algorithm: str) -> None:
        self.algorithm = algorithm

    def chain(
        self, tokens: list[int], parent: int | bytes | None, request: EngineRequest
    ) -> int | bytes:
        """What a block's own hash and its children's are made from."""
        lora_id, salt_id = request.lora_id, request.salt_id
        if self.algorithm == "v1_block_key":
            assert not isinstance(parent, bytes)
            return v1_block_key(tokens, parent or 0, lora_id=lora_id, salt_id=salt_id)
        if parent is None:
            parent = v2_root(lora_id=lora_id, salt_id=salt_id)
        assert isinstance(parent, bytes)
        return v2_sha256(tokens, parent)

    def name(self, chain: int | bytes) -> int | str:
        """As events say it."""
        if isinstance(chain, int):
            return chain
        return v2_sha256_64(chain) if self.algorithm == "v2_sha256_64" else chain.hex()
