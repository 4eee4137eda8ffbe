"""Which figures of a load record can be true. Knows no worker."""

from __future__ import annotations

from typing import TypeGuard

MAX_COUNT = 1e9  # above this a figure is impossible


def is_count(value: object) -> TypeGuard[float]:
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT
    )


def sum_of_counts(*values: object) -> object:
    """None if one of them is impossible."""
    counts = [value for value in values if is_count(value)]
    return sum(counts) if len(counts) == len(values) else None
