"""What to do wrong, from now on: the controls of one LLM. Any thread may use them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tensorrt_llm.double.settings import Settings


class Faults:
    """`has_impossible_stats`: free blocks beyond the maximum, used ones negative."""

    def __init__(self, notify: Callable[[], None], settings: Settings) -> None:
        self.slow_factor = settings.slow_factor
        self.has_impossible_stats = settings.has_impossible_stats
        self.death: str | None = None
        self._notify = notify
        self._is_over = False
        self._go_on = threading.Event()
        self._go_on.set()
        self._num_events_to_lose = 0

    @property
    def is_hanging(self) -> bool:
        return not self._go_on.is_set()

    def die(self, reason: str = "CUDA error: an illegal memory access was encountered") -> None:
        """The engine's loop ends by this error, before its next iteration."""
        self.death = reason
        self._notify()

    def hang(self) -> None:
        """The engine accepts everything and answers nothing until `resume`."""
        if not self._is_over:
            self._go_on.clear()

    def resume(self) -> None:
        self._go_on.set()

    def end(self) -> None:
        """Nothing hangs any more: the engine is shut down."""
        self._is_over = True
        self._go_on.set()

    def lose_events(self, num_events: int) -> None:
        """The next events get their ids and are never seen."""
        self._num_events_to_lose += num_events

    def wait_while_hanging(self) -> None:
        self._go_on.wait()

    def loses_event(self) -> bool:
        """Counts one event."""
        if not self._num_events_to_lose:
            return False
        self._num_events_to_lose -= 1
        return True
