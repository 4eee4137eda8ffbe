"""What `cachelane tune` reads: events and decisions, from files or from Kafka, as one record.

Counts what cannot be read and says which file it was. Proposes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from controllers.errors import EventError, SetupError
from controllers.record_codec import decode_batch
from controllers.records import Decision
from controllers.tuning_record import Record

EVENTS, DECISIONS = "events", "decisions"


@dataclass(slots=True)
class Source:
    """`values`: records as they are, blank lines left out. `num_other`: of the skipped ones, those
    that belong into the other source."""

    name: str
    values: Iterable[bytes]
    num_read: int = 0
    num_skipped: int = 0
    num_other: int = 0

    def __str__(self) -> str:
        return f"{self.num_skipped} of {self.num_read} records of {self.name}"


class Log(NamedTuple):
    record: Record
    events: Source
    decisions: Source

    @property
    def skipped(self) -> list[str]:
        """Which sources have records that cannot be read, and how many."""
        return [str(source) for source in (self.events, self.decisions) if source.num_skipped]


def read_log(events: Source, decisions: Source) -> Log:
    """Raises SetupError that names the source of which nothing can be used."""
    record = Record()
    for value in _values(events):
        if not _add_batch(record, value):
            events.num_skipped += 1
            events.num_other += _add_decision(Record(), value)
    for value in _values(decisions):
        if not _add_decision(record, value):
            decisions.num_skipped += 1
            decisions.num_other += _add_batch(Record(), value)
    _check(events, decisions)
    return Log(record, events, decisions)


def _values(source: Source) -> Iterable[bytes]:
    for value in source.values:
        if value.strip():
            source.num_read += 1
            yield value


def _add_batch(record: Record, value: bytes) -> bool:
    """False for a damaged record."""
    try:
        record.add_batch(decode_batch(value).batch)
    except EventError:
        return False
    return True


def _add_decision(record: Record, value: bytes) -> bool:
    """False for a damaged record."""
    try:
        record.add_decision(msgspec.json.decode(value, type=Decision))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def _check(events: Source, decisions: Source) -> None:
    if _is_other(events) and _is_other(decisions):
        raise SetupError(
            f"{events.name} has decisions and {decisions.name} has events: they are swapped"
        )
    for source, own, other in ((events, EVENTS, DECISIONS), (decisions, DECISIONS, EVENTS)):
        if source.num_read == 0:
            raise SetupError(f"{source.name} is empty: there are no {own} to read")
        if _is_other(source):
            raise SetupError(f"{source.name} has {other} instead of {own}")
        if source.num_skipped == source.num_read:
            raise SetupError(
                f"{source.name}: none of {source.num_read} records can be read as {own}"
            )


def _is_other(source: Source) -> bool:
    return source.num_other > 0 and source.num_skipped == source.num_read
