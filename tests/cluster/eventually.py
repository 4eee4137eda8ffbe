"""Waiting for what will become true, without a sleep of a fixed length."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import httpx

T = TypeVar("T")

POLL_S = 0.02


def eventually(check: Callable[[], T], timeout_s: float = 30.0) -> T:
    """The result of the first `check()` that neither fails an assertion nor misses its server.

    After `timeout_s` the last failure is raised as it was.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return check()
        except (AssertionError, httpx.TransportError):
            if time.monotonic() > deadline_s:
                raise
        time.sleep(POLL_S)
