"""The way of something from each simulated router to the others: late, and never lost.

Knows nothing of what is told: whoever hears is called. Times are in ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Late(Generic[T]):
    """Router `i` is told by `listeners[i](what, now)`."""

    def __init__(self, lag_ms: float) -> None:
        self.listeners: Sequence[Callable[[T, float], None]] = ()
        self._lag_ms = lag_ms
        self._on_the_way: deque[tuple[float, int, T]] = deque()

    def tell(self, router: int, what: T, now: float) -> None:
        """All but router number `router`."""
        self._on_the_way.append((now + self._lag_ms, router, what))

    def deliver(self, now: float) -> None:
        """Everything that has arrived by now."""
        on_the_way = self._on_the_way
        while on_the_way and on_the_way[0][0] <= now:
            at, router, what = on_the_way.popleft()
            for index, listener in enumerate(self.listeners):
                if index != router:
                    listener(what, at)
