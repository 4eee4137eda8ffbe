"""Leading pieces of one long prompt, sent one after the other, and when to stop cutting it.

A piece leaves its blocks cached for the next one. On a worker whose cache is too small for that the
prompt would never end. Knows no worker.
"""

from __future__ import annotations

# So many pieces may leave nothing behind; then the rest of the prompt goes out whole.
MAX_VAIN_PIECES = 2


class Pieces:
    """`num_ended`: that were computed, of all attempts."""

    def __init__(self) -> None:
        self.num_ended = 0
        self._computed_tokens = 0  # leading tokens, in this attempt
        self._num_vain = 0

    @property
    def is_whole(self) -> bool:
        """Pieces leave nothing behind: what is left must go out whole."""
        return self._num_vain >= MAX_VAIN_PIECES

    def ended(self, num_tokens: int) -> None:
        """The prompt's first `num_tokens` are computed; no more than before: all was in vain."""
        self.num_ended += 1
        self._num_vain += num_tokens <= self._computed_tokens
        self._computed_tokens = max(self._computed_tokens, num_tokens)

    def begin_again(self) -> None:
        """Elsewhere."""
        self._computed_tokens = self._num_vain = 0
