"""How a token is written in log probabilities."""

from __future__ import annotations

from collections.abc import Callable

LOWEST_LOGPROB = -9999.0  # JSON has no -inf; OpenAI's value for "practically impossible"


class TokenNames:
    """`token_bytes`: token id -> the bytes it stands for in the text."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes

    def bytes_of(self, token_id: int) -> bytes:
        return self._token_bytes(token_id)

    def name_of(self, token_id: int) -> str:
        r"""The token's text; `bytes:\xe2\x82` if it is part of a character."""
        raw = self._token_bytes(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def finite(logprob: float) -> float:
    """The log probability, or the lowest one that JSON can carry."""
    return logprob if logprob > LOWEST_LOGPROB else LOWEST_LOGPROB
