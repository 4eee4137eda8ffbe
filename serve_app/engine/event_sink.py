"""Where a block manager tells what it does."""

from __future__ import annotations

from typing import Protocol

from controllers.events import Stored


class EventSink(Protocol):
    """Called in the order of the changes, by the thread that makes them."""

    def stored(self, event: Stored) -> None: ...

    def removed(self, block_hash: int) -> None: ...

    def moved(self, block_hash: int, old_medium: str, medium: str) -> None: ...

    def reprioritised(self, block_hash: int, old: int, new: int) -> None: ...


class NoEvents:
    """For a cache of which nobody is told."""

    def stored(self, event: Stored) -> None:
        pass

    def removed(self, block_hash: int) -> None:
        pass

    def moved(self, block_hash: int, old_medium: str, medium: str) -> None:
        pass

    def reprioritised(self, block_hash: int, old: int, new: int) -> None:
        pass
