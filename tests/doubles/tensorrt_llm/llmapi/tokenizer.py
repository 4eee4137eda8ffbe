"""Text as bytes, for the double's own use of `generate` with text."""

from __future__ import annotations


class ByteTokenizer:
    """A token is a byte; control tokens are above."""

    def __init__(self, eos_token_id: int) -> None:
        self.eos_token_id = eos_token_id
        self.pad_token_id = eos_token_id

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: list[int]) -> str:
        return bytes(token for token in token_ids if token < 256).decode("utf-8", "replace")
