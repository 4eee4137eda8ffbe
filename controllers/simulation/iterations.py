"""Timings of an engine's iterations between two load records, as the local engine keeps them."""

from __future__ import annotations

from controllers.events import Iteration

MAX_SHAPES = 256


class Iterations:
    """Means by shape (new tokens, decodes)."""

    def __init__(self) -> None:
        self._sums: dict[tuple[int, int], list[float]] = {}

    def add(
        self, new_tokens: int, num_decodes: int, active_blocks: int, ms: float, count: int
    ) -> None:
        """`count` equal iterations of `ms` each."""
        sums = self._sums.setdefault((new_tokens, num_decodes), [0.0, 0.0, 0.0])
        sums[0] += count
        sums[1] += count * ms
        sums[2] += count * active_blocks
        if len(self._sums) > MAX_SHAPES:
            del self._sums[new_tokens, num_decodes]

    def take(self) -> list[Iteration]:
        sums, self._sums = self._sums, {}
        return [
            Iteration(new_tokens, num_decodes, round(blocks / count), ms / count, int(count))
            for (new_tokens, num_decodes), (count, ms, blocks) in sums.items()
        ]
