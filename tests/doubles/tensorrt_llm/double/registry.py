"""The LLMs of this process that were not shut down: tests reach one inside an adapter by it."""

from __future__ import annotations

from typing import Any

_LIVE: dict[int, Any] = {}


def running() -> list[Any]:
    """The oldest first."""
    return list(_LIVE.values())


def remember(llm: Any) -> None:
    _LIVE[id(llm)] = llm


def forget(llm: Any) -> None:
    _LIVE.pop(id(llm), None)
