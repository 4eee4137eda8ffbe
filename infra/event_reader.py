"""Reads one topic across broken connections, and notices when it has become another topic.

Owns positions, the start position and the detection of a reset. Knows no client library: it talks
to a `Fetcher`, which `infra.kafka_fetcher` supplies. One thread owns a reader.

A topic counts as another one when
1. its id or its number of partitions changed, or
2. a record comes with an offset that was already passed, or
3. its end stays behind what was already read (for a while: a new leader may be late for a moment).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from controllers.errors import BusError
from infra.event_bus_base import Record, ResetRequired

log = logging.getLogger(__name__)

RETRY_S = 0.25
SHRUNK_FOR_S = 2.0  # law 3: how long the end must stay behind
MISSING_FOR_S = 3.0  # connect anew (which creates the topic) after it was missing for so long


class Fetcher(Protocol):
    """One connection that reads all partitions of one topic, from the oldest record on."""

    def partitions(self) -> tuple[int, ...]:
        """All partitions of the topic as last heard; empty while the topic is missing."""
        ...

    def topic_id(self) -> str | None:
        """Changes when the topic is created again; None if the bus has no such thing."""
        ...

    def poll(self, timeout_s: float) -> list[Record]:
        """Raises BusError."""
        ...

    def position(self, partition: int) -> int | None:
        """Offset of the next record; None if not known yet."""
        ...

    def end(self, partition: int) -> int | None:
        """Offset after the last record, as of the last answer for this partition; None before."""
        ...

    def seek(self, partition: int, offset: int) -> None: ...

    def is_connected(self) -> bool: ...

    def close(self) -> None: ...


class EventReader:
    """See `infra.event_bus_base.Reader`."""

    def __init__(
        self, connect: Callable[[], Fetcher], topic: str, backlog: int | None = None
    ) -> None:
        self._connect = connect
        self._topic = topic
        self._backlog = backlog
        self._fetcher: Fetcher | None = None
        self._identity: tuple[str | None, int] | None = None
        self._next_offsets: dict[int, int] = {}
        self._is_seeking = False  # the ends are being learnt to find the start of the backlog
        self._shrunk_since_s: float | None = None
        self._missing_since_s: float | None = None
        self._last_error = ""

    def poll(self, timeout_s: float) -> list[Record]:
        try:
            fetcher = self._fetcher or self._open()
            records = fetcher.poll(timeout_s)
        except BusError as error:
            self._fail(error)
            time.sleep(min(timeout_s, RETRY_S))
            return []
        self._check_identity(fetcher)
        if self._fetcher is None:
            return []  # the topic is missing; what came is read again
        if self._is_seeking:
            self._seek_backlog(fetcher)
            return []
        self._advance(records)
        self._check_ends(fetcher)
        return records

    def is_connected(self) -> bool:
        return self._fetcher is not None and self._fetcher.is_connected()

    def is_caught_up(self) -> bool:
        return self.lag() == 0

    def lag(self) -> int | None:
        fetcher = self._fetcher
        if fetcher is None or self._is_seeking or self._identity is None:
            return None
        lag = 0
        for partition in range(self._identity[1]):
            end, position = fetcher.end(partition), self._position(fetcher, partition)
            if end is None or position is None:
                return None
            lag += max(0, end - position)
        return lag

    def last_error(self) -> str:
        return self._last_error

    def close(self) -> None:
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            fetcher.close()

    def _open(self) -> Fetcher:
        """Connect and go to where reading stopped, or to the start."""
        self._fetcher = fetcher = self._connect()
        self._check_identity(fetcher)
        for partition, offset in self._next_offsets.items():
            fetcher.seek(partition, offset)
        self._is_seeking = self._backlog is not None and not self._next_offsets
        self._last_error = ""
        return fetcher

    def _fail(self, error: BusError) -> None:
        if str(error) != self._last_error:
            log.warning("reading %s: %s", self._topic, error)
        self._last_error = str(error)
        self.close()

    def _seek_backlog(self, fetcher: Fetcher) -> None:
        """Once every end is known, go back by the backlog; what was polled so far is dropped."""
        partitions = fetcher.partitions()
        ends = [fetcher.end(partition) for partition in partitions]
        if None in ends or self._backlog is None:
            return
        for partition, end in zip(partitions, ends, strict=True):
            if end is not None and end > self._backlog:
                fetcher.seek(partition, end - self._backlog)
            else:
                fetcher.seek(partition, 0)
        self._is_seeking = False

    def _advance(self, records: list[Record]) -> None:
        next_offsets = self._next_offsets
        for record in records:
            if record.offset < next_offsets.get(record.partition, 0):
                self._reset(
                    f"partition {record.partition} gave offset {record.offset} "
                    f"after {next_offsets[record.partition] - 1}"
                )
            next_offsets[record.partition] = record.offset + 1

    def _check_identity(self, fetcher: Fetcher) -> None:
        partitions = fetcher.partitions()
        if not partitions:
            self._wait_for_topic()
            return
        self._missing_since_s = None
        identity = (fetcher.topic_id(), len(partitions))
        if self._identity is None:
            self._identity = identity
        elif identity != self._identity:
            self._reset(f"topic id and partitions changed from {self._identity} to {identity}")

    def _wait_for_topic(self) -> None:
        now = time.monotonic()
        if self._missing_since_s is None:
            self._missing_since_s = now
        elif now - self._missing_since_s > MISSING_FOR_S:
            self._missing_since_s = None
            self._fail(BusError(f"topic {self._topic!r} is missing"))

    def _check_ends(self, fetcher: Fetcher) -> None:
        if not self._is_shrunk(fetcher):
            self._shrunk_since_s = None
            return
        now = time.monotonic()
        if self._shrunk_since_s is None:
            self._shrunk_since_s = now
        elif now - self._shrunk_since_s > SHRUNK_FOR_S:
            self._reset("the log ends before what was already read")

    def _is_shrunk(self, fetcher: Fetcher) -> bool:
        for partition, offset in self._next_offsets.items():
            end = fetcher.end(partition)
            if end is not None and end < offset:
                return True
        return False

    def _position(self, fetcher: Fetcher, partition: int) -> int | None:
        if partition in self._next_offsets:
            return self._next_offsets[partition]
        return fetcher.position(partition)

    def _reset(self, reason: str) -> None:
        self.close()
        self._identity = None
        self._next_offsets = {}
        self._shrunk_since_s = None
        raise ResetRequired(f"{self._topic}: {reason}")
