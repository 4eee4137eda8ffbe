"""Events and statistics that wait to be read. Reading destroys; a full buffer drops the oldest."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

POLL_S = 0.1
DEFAULT_TIMEOUT_S = 2.0


class Published:
    """`size` counts items. `dropped` is called once for each put that did not fit."""

    def __init__(self, size: int, dropped: Callable[[], None] | None = None) -> None:
        self._items: deque[Any] = deque(maxlen=size)
        self._lock = threading.Lock()
        self._dropped = dropped

    def put(self, items: list[Any]) -> None:
        with self._lock:
            assert self._items.maxlen is not None
            is_too_much = len(self._items) + len(items) > self._items.maxlen
            self._items.extend(items)
        if is_too_much and self._dropped is not None:
            self._dropped()

    def take(self) -> list[Any]:
        with self._lock:
            items = list(self._items)
            self._items.clear()
        return items

    def poll(self, timeout_s: float | None, is_over: Callable[[], bool]) -> list[Any]:
        """Looks every 0.1 s until there is something or the time is over. Blocks its caller."""
        until = time.monotonic() + (DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s)
        while not (items := self.take()):
            left_s = until - time.monotonic()
            if left_s <= 0 or is_over():
                return []
            time.sleep(min(POLL_S, left_s))
        return items


def warn_of_discarded(size: int) -> None:
    logger.warning(
        "The event queue has reached the max size of %d. Events have been discarded.", size
    )
