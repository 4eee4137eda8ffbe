"""How long iterations took, for the cost model. Knows nothing of what ran in them."""

from __future__ import annotations

import threading

from controllers.events import Iteration

MAX_SHAPES = 256  # between two readings; further shapes are not recorded


class IterationStats:
    """Iterations by shape (new tokens, decodes). One thread records, another takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shapes: dict[tuple[int, int], list[float]] = {}

    def record(self, new_tokens: int, num_decodes: int, active_blocks: int, ms: float) -> None:
        with self._lock:
            sums = self._shapes.get((new_tokens, num_decodes))
            if sums is not None:
                sums[0] += 1
                sums[1] += ms
                sums[2] += active_blocks
            elif len(self._shapes) < MAX_SHAPES:
                self._shapes[new_tokens, num_decodes] = [1, ms, active_blocks]

    def take(self) -> list[Iteration]:
        """Means by shape since the last call."""
        with self._lock:
            shapes, self._shapes = self._shapes, {}
        return [
            Iteration(
                new_tokens=new_tokens,
                num_decodes=num_decodes,
                active_blocks=round(blocks / count),
                ms=ms / count,
                count=int(count),
            )
            for (new_tokens, num_decodes), (count, ms, blocks) in shapes.items()
        ]
