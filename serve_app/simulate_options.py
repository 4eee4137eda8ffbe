"""Texts of `cachelane simulate` to values, and its files. Each error is one line."""

from __future__ import annotations

import math
import re
from pathlib import Path

from controllers.errors import EventError, SettingsError
from controllers.events import EventBatch
from controllers.record_codec import decode_batch
from controllers.simulation.settings import Outage
from controllers.simulation.timing import TimingCurve, fit_curve
from controllers.simulation.trace import Row, read_rows
from serve_app.cli_common import read_bytes

# What the fields of FleetSettings are called here.
OPTION_OF = {
    "num_workers": "--workers",
    "num_blocks": "--blocks",
    "num_host_blocks": "--host-blocks",
    "num_routers": "--routers",
    "start_s": "--start-time",
    "booking_lag_s": "--booking-lag",
    "event_lag_s": "--event-lag",
    "slowness": "--slow-worker",
    "blocks_of": "--worker-blocks",
    "outages": "--outage",
} | {
    name: "--" + name.replace("_", "-")
    for name in ("speedup", "jitter", "seed", "event_loss", "max_batched_tokens", "max_sequences")
}
MAX_WORKERS = 10_000
_SECONDS_OF = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>ms|s|m|h|)")


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
            if numbers and numbers[-1] >= MAX_WORKERS:
                raise SettingsError(
                    f"{name}: {text!r}: workers are 0 ... {MAX_WORKERS - 1} at most"
                )
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
    return read_rows(read_bytes(path).splitlines(), str(path))


def first_rows(rows: list[Row], limit: int | None) -> list[Row]:
    """So many in the order of time; None: all."""
    return sorted(rows, key=lambda row: row.timestamp)[:limit]


def read_curve(path: Path, reference_blocks: int, name: str) -> TimingCurve:
    """Fitted to records of the kv-events topic, one JSON object a line. Raises SettingsError that
    names the option, file and line."""
    batches: list[EventBatch] = []
    for number, line in enumerate(read_bytes(path).splitlines(), 1):
        try:
            batches += [decode_batch(line).batch] if line.strip() else []
        except EventError as error:
            raise SettingsError(f"{name}: {path} line {number}: {error}") from error
    try:
        return fit_curve(batches, reference_blocks)
    except SettingsError as error:
        raise SettingsError(f"{name}: {path}: {error}") from error
