"""What scheduler and engine need of the cache, whether it has one attention window or several."""

from __future__ import annotations

from typing import Protocol

from serve_app.engine.sequence import Sequence


class CacheManager(Protocol):
    """`now` is in seconds of any monotonic clock, the same in every call.

    Figures by medium ("gpu", "host") are those of the largest window.
    """

    @property
    def block_size(self) -> int: ...

    @property
    def num_blocks(self) -> dict[str, int]: ...

    @property
    def used_blocks(self) -> dict[str, int]:
        """Gpu: blocks of live sequences. Host: blocks with content."""
        ...

    @property
    def cached_blocks(self) -> dict[str, int]:
        """Blocks of live sequences and reusable ones."""
        ...

    def num_cached_tokens(self, seq: Sequence) -> int:
        """Tokens that allocate() would reuse now. Changes nothing."""
        ...

    def allocate(self, seq: Sequence, now: float, num_spare: int = 0) -> bool:
        """Blocks for all present tokens of a sequence, reused where possible.

        Sets `num_cached` and `num_computed`. False, and nothing changed, when fewer than
        `num_spare` blocks would stay free.
        """
        ...

    def grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Blocks for the first `num_tokens` tokens. False, and nothing changed, without room."""
        ...

    def slide(self, seq: Sequence, now: float) -> None:
        """Gives back the blocks that no later token attends to; they stay reusable."""
        ...

    def store_full(self, seq: Sequence, num_tokens: int) -> None:
        """Makes the full blocks of the first `num_tokens` tokens reusable; they are computed."""
        ...

    def free(self, seq: Sequence, now: float, num_tokens: int | None = None) -> None:
        """Takes all blocks from a sequence; its first `num_tokens` tokens stay reusable.

        `num_tokens` None: all computed ones. Those must be computed.
        """
        ...

    def expire(self, now: float) -> None:
        """Blocks whose duration is over fall to the default priority. Once a step."""
        ...
