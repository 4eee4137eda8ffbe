"""Looking at this process, its packages, a bus and a running fleet. Judges nothing."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Iterable
from pathlib import Path

from infra.bus_facts import BusFacts
from infra.doctor.fleet import Heard
from infra.event_bus import KafkaBus
from infra.event_bus_base import Reader, ResetRequired
from infra.kafka_inspect import inspect
from infra.settings_sections import KafkaSettings

PRODUCT = "cachelane"
BUS_TIMEOUT_S = 2.0
CATCH_UP_S = 7.0  # a busy machine takes seconds for the first answer
RAY_TOKEN_FILE = Path("~/.ray/auth_token")


def installed_versions(names: Iterable[str]) -> dict[str, str | None]:
    """From the packages' metadata; nothing is imported."""
    return {name: _version(name) for name in names}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def own_requirements() -> list[str]:
    return importlib.metadata.requires(PRODUCT) or []


def has_ray_token_file() -> bool:
    return RAY_TOKEN_FILE.expanduser().exists()


def look_at_bus(settings: KafkaSettings) -> BusFacts:
    """Raises BusError."""
    return inspect(settings, BUS_TIMEOUT_S)


def hear_workers(settings: KafkaSettings, duration_s: float) -> list[Heard]:
    """Records that came while this listened, not what was there before.

    Only for a fleet that runs: it has its topics, and reading creates those that are missing.
    """
    bus = KafkaBus(settings)
    reader = bus.reader(bus.topics.kv_events, backlog=1)
    try:
        return _listen(reader, duration_s)
    finally:
        reader.close()


def _listen(reader: Reader, duration_s: float) -> list[Heard]:
    """Nothing, if what was there before could not be read in time: it would pass for news."""
    deadline_s = time.monotonic() + CATCH_UP_S
    while not reader.is_caught_up():
        if time.monotonic() >= deadline_s:
            return []
        reader.poll(0.1)
    heard: list[Heard] = []
    deadline_s = time.monotonic() + duration_s
    while time.monotonic() < deadline_s:
        try:
            records = reader.poll(0.1)
        except ResetRequired:
            continue
        now_s = time.time()
        heard += [Heard(record, now_s) for record in records]
    return heard
