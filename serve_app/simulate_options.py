"""Texts of `cachelane simulate` to values, and its files. Each error is one line."""

from __future__ import annotations

import gzip
import math
import re
import zlib
from pathlib import Path

from controllers.errors import SettingsError
from controllers.events import EventBatch, decode_batch
from controllers.simulation.settings import Outage
from controllers.simulation.timing import TimingCurve, fit_curve
from controllers.simulation.trace import Row, read_rows

_SECONDS_OF = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>ms|s|m|h|)")
_GZIP_MAGIC = b"\x1f\x8b"


def parse_duration(text: str, name: str) -> float:
    """Seconds: 500ms, 1s, 2m, 1h or a plain number of seconds. Raises SettingsError."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise SettingsError(f"{name}: {text!r} is not a time; write 500ms, 1s or 2m")
    return float(found["number"]) * _SECONDS_OF[found["unit"]]


def parse_by_worker(texts: list[str], name: str) -> dict[int, float]:
    """`0=3` or `0-3=8192`, each given once more for other workers. Raises SettingsError."""
    values: dict[int, float] = {}
    for text in texts:
        workers, _, value = text.partition("=")
        first, _, last = workers.partition("-")
        try:
            numbers = range(int(first), int(last or first) + 1)
            values |= dict.fromkeys(numbers, float(value))
        except ValueError:
            raise SettingsError(f"{name}: {text!r} is not WORKER=VALUE or 0-3=VALUE") from None
        if not len(numbers):
            raise SettingsError(f"{name}: {text!r} names no worker")
    return values


def parse_outages(texts: list[str], name: str) -> tuple[Outage, ...]:
    """`3=90s` (from then on), `3=90s-120s` (back after that). Raises SettingsError."""
    outages = []
    for text in texts:
        worker, has_time, times = text.partition("=")
        at, has_end, back = times.partition("-")
        if not (worker.isdecimal() and has_time):
            raise SettingsError(f"{name}: {text!r} is not WORKER=TIME or WORKER=TIME-TIME")
        back_s = parse_duration(back, name) if has_end else math.inf
        outages.append(Outage(int(worker), parse_duration(at, name), back_s))
    return tuple(outages)


def read_trace(path: Path) -> list[Row]:
    """JSON lines, plain or gzip. Raises SettingsError."""
    return read_rows(_read(path).splitlines(), str(path))


def read_curve(path: Path, reference_blocks: int) -> TimingCurve:
    """Fitted to records of the kv-events topic, one JSON object a line. Raises CachelaneError."""
    lines = [line for line in _read(path).splitlines() if line.strip()]
    batches: list[EventBatch] = [decode_batch(line).batch for line in lines]
    return fit_curve(batches, reference_blocks)


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data
    except (OSError, EOFError, zlib.error) as error:
        raise SettingsError(f"cannot read {path}: {error}") from error
