"""What a single request may fail with."""

from __future__ import annotations


class RequestError(RuntimeError):
    """The request failed, the engine did not."""
