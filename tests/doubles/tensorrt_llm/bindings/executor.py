"""What a request asks the engine to keep: ranges of the prompt, and generated tokens.

Durations are `datetime.timedelta`; numbers are refused as by a compiled binding.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

logger = logging.getLogger(__name__)

MIN_PRIORITY, MAX_PRIORITY, DEFAULT_PRIORITY = 0, 100, 35


class KvCacheTransferMode(enum.Enum):
    DRAM = 0
    GDS = 1
    POSIX_DEBUG_FALLBACK = 2


def _checked_priority(priority: int) -> int:
    _check_type("priority", priority, int)
    if not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise RuntimeError(
            f"[TensorRT-LLM][ERROR] Assertion failed: Invalid priority value {priority}"
        )
    return priority


def _check_type(name: str, value: Any, kind: type, *, is_optional: bool = False) -> None:
    if value is None and is_optional:
        return
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(
            f"__init__(): incompatible function arguments: {name} is {type(value).__name__}, "
            f"{kind.__name__} is needed"
        )


class TokenRange:
    """Known as KvCacheRetentionConfig.TokenRangeRetentionConfig: prompt tokens [start, end).

    `token_end` None: to its end.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        token_start: int,
        token_end: int | None,
        priority: int,
        duration_ms: timedelta | None = None,
    ) -> None:
        _check_type("token_start", token_start, int)
        _check_type("token_end", token_end, int, is_optional=True)
        _check_type("duration_ms", duration_ms, timedelta, is_optional=True)
        self.token_start = token_start
        self.token_end = token_end
        self.priority = _checked_priority(priority)
        self.duration_ms = duration_ms

    def _values(self) -> tuple[Any, ...]:
        return (self.token_start, self.token_end, self.priority, self.duration_ms)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenRange):
            return NotImplemented
        return self._values() == other._values()

    def __reduce__(self) -> tuple[Any, ...]:
        return (TokenRange, self._values())


class KvCacheRetentionConfig:
    """Sorted and checked ranges; everything is read-only."""

    __hash__ = None  # type: ignore[assignment]
    TokenRangeRetentionConfig = TokenRange
    kMinRetentionPriority = MIN_PRIORITY
    kMaxRetentionPriority = MAX_PRIORITY
    kDefaultRetentionPriority = DEFAULT_PRIORITY

    def __init__(
        self,
        token_range_retention_configs: Sequence[TokenRange],
        decode_retention_priority: int = DEFAULT_PRIORITY,
        decode_duration_ms: timedelta | None = None,
        transfer_mode: KvCacheTransferMode = KvCacheTransferMode.DRAM,
        directory: str | None = None,
    ) -> None:
        ranges = list(token_range_retention_configs)
        for given in ranges:
            _check_type("token_range_retention_configs", given, TokenRange)
        _check_type("decode_duration_ms", decode_duration_ms, timedelta, is_optional=True)
        self._ranges = sorted(ranges, key=lambda given: given.token_start)
        _check_ranges(self._ranges)
        self._decode_priority = _checked_priority(decode_retention_priority)
        self._decode_duration = decode_duration_ms
        if transfer_mode is not KvCacheTransferMode.DRAM and not directory:
            logger.warning("no directory for %s: falling back to DRAM", transfer_mode)
            transfer_mode = KvCacheTransferMode.DRAM
        self._transfer_mode = transfer_mode
        self._directory = directory or ""

    @property
    def token_range_retention_configs(self) -> list[TokenRange]:
        return list(self._ranges)

    @property
    def decode_retention_priority(self) -> int:
        return self._decode_priority

    @property
    def decode_duration_ms(self) -> timedelta | None:
        return self._decode_duration

    @property
    def transfer_mode(self) -> KvCacheTransferMode:
        return self._transfer_mode

    @property
    def directory(self) -> str:
        return self._directory

    def _values(self) -> tuple[Any, ...]:
        decode = (self._decode_priority, self._decode_duration)
        return (self._ranges, *decode, self._transfer_mode, self._directory)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KvCacheRetentionConfig):
            return NotImplemented
        return self._values() == other._values()

    def __reduce__(self) -> tuple[Any, ...]:
        return (KvCacheRetentionConfig, self._values())


def _check_ranges(ranges: list[TokenRange]) -> None:
    for at, given in enumerate(ranges):
        is_last = at == len(ranges) - 1
        if given.token_end is None and not is_last:
            raise ValueError("Invalid use of end indicator.")
        if given.token_start < 0:
            raise ValueError("token_start must not be negative")
        if given.token_end is None:
            continue
        if given.token_start >= given.token_end:
            raise ValueError("token range must have positive length")
        if not is_last and given.token_end > ranges[at + 1].token_start:
            raise ValueError("token ranges must not overlap")
