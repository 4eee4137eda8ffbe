"""One cache for a model whose layers have different attention windows.

Owns what must agree between the windows: a sequence is admitted, grows and ends in all of them or
in none, and reuses what all of them can. Each window has a block manager with blocks and events of
its own; which block is whose is theirs.

Give events of the largest window alone to the log: routing counts full blocks of that one.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from controllers.errors import SettingsError
from serve_app.engine.block_manager import BlockManager
from serve_app.engine.sequence import Sequence


class WindowManagers:
    """Implements CacheManager over one manager a window. `managers` may be in any order.

    Raises SettingsError for two managers of one window or of different block sizes.
    """

    def __init__(self, managers: Seq[BlockManager]) -> None:
        self.by_window = sorted(managers, key=_reach)  # ascending; full attention last
        _check(self.by_window)
        *self._smaller, self._largest = self.by_window
        self._seq_to_views: dict[Sequence, list[Sequence]] = {}

    @property
    def block_size(self) -> int:
        return self._largest.block_size

    @property
    def num_blocks(self) -> dict[str, int]:
        return self._largest.num_blocks

    @property
    def used_blocks(self) -> dict[str, int]:
        """See CacheManager."""
        return self._largest.used_blocks

    @property
    def cached_blocks(self) -> dict[str, int]:
        """See CacheManager."""
        return self._largest.cached_blocks

    def num_cached_tokens(self, seq: Sequence) -> int:
        """See CacheManager. What the window that knows least would reuse."""
        return min(manager.num_cached_tokens(seq) for manager in self.by_window)

    def allocate(self, seq: Sequence, now: float, num_spare: int = 0) -> bool:
        """See CacheManager.

        A window that could reuse more shares those blocks all the same; their tokens are computed
        again, to the same values.
        """
        if not all(manager.can_allocate(seq, num_spare) for manager in self.by_window):
            return False
        views = [seq.view() for _ in self._smaller]
        self._seq_to_views[seq] = views
        for manager, part in self._parts(seq):
            manager.allocate(part, now, num_spare)
        num_cached = min(part.num_cached for part in (seq, *views))
        for part in (seq, *views):
            part.num_cached = part.num_computed = num_cached
        return True

    def grow(self, seq: Sequence, num_tokens: int) -> bool:
        """See CacheManager."""
        parts = self._parts(seq)
        if not all(manager.can_grow(part, num_tokens) for manager, part in parts):
            return False
        for manager, part in parts:
            manager.grow(part, num_tokens)
        return True

    def slide(self, seq: Sequence, now: float) -> None:
        """See CacheManager."""
        for manager, part in self._parts(seq):
            manager.slide(part, now)

    def store_full(self, seq: Sequence, num_tokens: int) -> None:
        """See CacheManager."""
        for manager, part in self._parts(seq):
            manager.store_full(part, num_tokens)

    def free(self, seq: Sequence, now: float, num_tokens: int | None = None) -> None:
        """See CacheManager."""
        if num_tokens is None:
            num_tokens = seq.num_computed
        parts = self._parts(seq)
        self._seq_to_views.pop(seq, None)
        for manager, part in parts:
            manager.free(part, now, num_tokens)

    def expire(self, now: float) -> None:
        """See CacheManager."""
        for manager in self.by_window:
            manager.expire(now)

    def view_of(self, seq: Sequence, manager: BlockManager) -> Sequence:
        """A live sequence as one of the managers knows it, with the blocks it has there."""
        return next(part for owner, part in self._parts(seq) if owner is manager)

    def _parts(self, seq: Sequence) -> list[tuple[BlockManager, Sequence]]:
        """Each manager with what it knows of a sequence; none but the largest of a waiting one."""
        views = self._seq_to_views.get(seq, [])
        for view in views:
            view.num_computed = seq.num_computed
        smaller = zip(self._smaller, views, strict=False)
        return [*smaller, (self._largest, seq)]


def _reach(manager: BlockManager) -> float:
    return float("inf") if manager.window is None else manager.window


def _check(managers: Seq[BlockManager]) -> None:
    windows = [manager.window for manager in managers]
    if len(set(windows)) < len(windows) or not windows:
        raise SettingsError(f"attention windows are {windows}: each must be there once")
    block_sizes = {manager.block_size for manager in managers}
    if len(block_sizes) > 1:
        raise SettingsError(f"attention windows have block sizes {sorted(block_sizes)}, not one")
