"""The `retention` field of a request -> TokenRanges.

Knows the rules that one list of ranges must keep by itself; what a policy or a tenant allows is
checked by `retention.plan`.
"""

from __future__ import annotations

from typing import Any

from controllers.errors import InvalidRequest
from controllers.promises import DEFAULT_RETENTION_PRIORITY, MAX_RETENTION_PRIORITY, Promise
from controllers.retention import TokenRange

MAX_DURATION_S = 31_536_000.0  # a year; engines count milliseconds in 64 bits
MAX_RANGES = 64
_KEYS = ("start", "end", "retention_priority", "duration_s")


def parse_ranges(value: Any, num_tokens: int) -> tuple[TokenRange, ...]:
    """Plain JSON values -> ranges in order.

    `value` is None or a list of {start, end, retention_priority, duration_s}; `end` null or absent
    means the end of the prompt and may only be so in the last range; `duration_s` null or absent
    means that it does not expire. Ranges are in the order of the prompt, do not overlap, lie within
    its `num_tokens` tokens and never rise in retention priority or duration. Raises InvalidRequest
    with the path of the bad value, for example `retention[1].end`.
    """
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidRequest("retention", f"must be a list of ranges, got {_name(value)}")
    if len(value) > MAX_RANGES:
        raise InvalidRequest("retention", f"has {len(value)} ranges, at most {MAX_RANGES} allowed")
    ranges: list[TokenRange] = []
    for i, item in enumerate(value):
        path = f"retention[{i}]"
        given = _parse_range(path, item, num_tokens)
        if given.end is None and i + 1 < len(value):
            raise InvalidRequest(f"{path}.end", "only the last range may be without an end")
        if ranges:
            _check_order(path, ranges[-1], given)
        ranges.append(given)
    return tuple(ranges)


def _parse_range(path: str, item: Any, num_tokens: int) -> TokenRange:
    if not isinstance(item, dict):
        raise InvalidRequest(path, f"must be an object, got {_name(item)}")
    for key in item:
        if key not in _KEYS:
            raise InvalidRequest(
                f"{path}.{str(key)[:40]}", f"unknown key; valid keys: {', '.join(_KEYS)}"
            )
    for key in ("start", "retention_priority"):
        if key not in item:
            raise InvalidRequest(f"{path}.{key}", "is required")
    start = _integer(f"{path}.start", item["start"], 0, num_tokens - 1)
    end = item.get("end")
    if end is not None:
        end = _integer(f"{path}.end", end, start + 1, num_tokens)
    priority_path = f"{path}.retention_priority"
    priority = _integer(priority_path, item["retention_priority"], 0, MAX_RETENTION_PRIORITY)
    return TokenRange(start, end, priority, _parse_duration(path, item.get("duration_s"), priority))


def _parse_duration(path: str, value: Any, priority: int) -> float | None:
    if value is None:
        return None
    field = f"{path}.duration_s"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidRequest(field, f"must be a number of seconds or null, got {_name(value)}")
    if not 0 < value <= MAX_DURATION_S:
        raise InvalidRequest(
            field, f"must be above 0 and at most {MAX_DURATION_S:.0f} s, got {value}"
        )
    if priority < DEFAULT_RETENTION_PRIORITY:
        raise InvalidRequest(
            field,
            f"needs a retention_priority of at least {DEFAULT_RETENTION_PRIORITY}, to which blocks "
            f"fall when it ends; got {priority}",
        )
    return float(value)


def _integer(field: str, value: Any, low: int, high: int) -> int:
    if type(value) is not int:
        raise InvalidRequest(field, f"must be an integer, got {_name(value)}")
    if not low <= value <= high:
        raise InvalidRequest(field, f"must be in {low}-{high}, got {_name(value)}")
    return value


def _check_order(path: str, before: TokenRange, given: TokenRange) -> None:
    assert before.end is not None
    if given.start < before.end:
        raise InvalidRequest(
            f"{path}.start",
            f"{given.start} is before {before.end}, the end of the range before it; ranges must be "
            "in order and must not overlap",
        )
    if given.retention_priority > before.retention_priority:
        raise InvalidRequest(
            f"{path}.retention_priority",
            f"{given.retention_priority} is above {before.retention_priority} of the range before "
            "it; retention priorities must not rise along the prompt",
        )
    if not _promise(before).covers(_promise(given)):
        raise InvalidRequest(f"{path}.duration_s", "lasts longer than that of the range before it")


def _promise(given: TokenRange) -> Promise:
    return Promise.of(given.retention_priority, given.duration_s)


def _name(value: Any) -> str:
    """A value for a message; long ones are cut (Python refuses to print very long integers)."""
    is_huge = isinstance(value, int) and value.bit_length() > 256
    text = f"a number of {value.bit_length()} bits" if is_huge else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
