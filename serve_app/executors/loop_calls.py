"""Calling into an event loop from wherever one happens to be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


def call_on(
    loop: asyncio.AbstractEventLoop | None, function: Callable[..., None], *args: Any
) -> None:
    """At once when this is the loop's thread or nobody uses a loop yet, else as its next callback.

    A loop that was closed has nobody left who waits: no effect.
    """
    if loop is None or loop is _running_loop():
        function(*args)
        return
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
