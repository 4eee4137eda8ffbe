"""A benchmark that is told to end takes down what it has started.

By default SIGTERM and SIGHUP end a process without running any `finally`, and a fleet of its own
would go on.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
    """Inside, such a signal is a SystemExit with the status a shell would give; more of them, while
    things are taken down, do nothing. Main thread only."""

    def leave(number: int, frame: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, _ignore)
        raise SystemExit(128 + number)

    former = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in former.items():
        if handler is not signal.SIG_IGN:  # `nohup` wants a closed terminal to mean nothing
            signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Inside, such a signal waits until the end: for taking things down. Main thread only."""
    arrived: list[int] = []
    former = {
        number: signal.signal(number, lambda number, frame: arrived.append(number))
        for number in SIGNALS
    }
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        for first in arrived[:1]:
            signal.raise_signal(first)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Not SIG_IGN, which processes that are started to take things down would inherit."""
