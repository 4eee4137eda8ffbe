"""Clock and memory for the table benchmarks. Standard library only, on Linux."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")
SLICE = 100


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def typical_us(work: Callable[[], object], repeat: int = 300) -> float:
    """Median of `repeat` calls."""
    times = sorted(seconds(work) for _ in range(repeat))
    return times[len(times) // 2] * 1e6


def typical_seconds(items: list[Item], work: Callable[[Item], object]) -> float:
    """Does `work` on every item; returns the time as if all had gone like the median hundred.

    A slice takes a few milliseconds, so those that lost their core to another process do not count.
    """
    each_s = []
    for start in range(0, len(items), SLICE):
        part = items[start : start + SLICE]
        each_s.append(seconds(lambda part=part: [work(item) for item in part]) / len(part))
    return sorted(each_s)[len(each_s) // 2] * len(items)


def rss() -> int:
    """Resident bytes of this process."""
    gc.collect()
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return resident_pages * os.sysconf("SC_PAGE_SIZE")
