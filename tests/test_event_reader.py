"""The reader's positions and its detection of another topic, over a scripted connection."""

from __future__ import annotations

import pytest

from controllers.errors import BusError
from infra import event_reader
from infra.event_bus_base import Record, ResetRequired
from infra.event_reader import EventReader


def record(partition: int, offset: int) -> Record:
    return Record(partition, offset, 0, b"k", b"%d.%d" % (partition, offset))


class ScriptedFetcher:
    """One log of two partitions; `log` and `topic` may be changed between polls."""

    def __init__(self, ends: tuple[int, ...] = (3, 1), topic_id: str | None = "a") -> None:
        self.log = {p: [record(p, o) for o in range(end)] for p, end in enumerate(ends)}
        self.topic = topic_id
        self.positions = dict.fromkeys(self.log, 0)
        self.known_ends: dict[int, int] = {}
        self.error = ""
        self.is_closed = False

    def partitions(self) -> tuple[int, ...]:
        return tuple(self.log)

    def topic_id(self) -> str | None:
        return self.topic

    def poll(self, timeout_s: float) -> list[Record]:
        if self.error:
            raise BusError(self.error)
        found: list[Record] = []
        for partition, records in self.log.items():
            found += records[self.positions[partition] :]
            self.positions[partition] = max(self.positions[partition], len(records))
            self.known_ends[partition] = len(records)
        return found

    def position(self, partition: int) -> int | None:
        return self.positions[partition]

    def end(self, partition: int) -> int | None:
        assert not self.is_closed
        return self.known_ends.get(partition)

    def seek(self, partition: int, offset: int) -> None:
        self.positions[partition] = offset

    def is_connected(self) -> bool:
        return not self.is_closed

    def close(self) -> None:
        self.is_closed = True


def connect_to(*fetchers: ScriptedFetcher | str):
    steps = list(fetchers)

    def connect() -> ScriptedFetcher:
        step = steps.pop(0)
        if isinstance(step, str):
            raise BusError(step)
        return step

    return connect


def test_reads_everything_once():
    fetcher = ScriptedFetcher()
    reader = EventReader(connect_to(fetcher), "t")
    assert reader.lag() is None
    assert reader.poll(0.0) == [record(0, 0), record(0, 1), record(0, 2), record(1, 0)]
    assert (reader.lag(), reader.is_caught_up(), reader.is_connected()) == (0, True, True)
    assert reader.poll(0.0) == []
    fetcher.log[1].append(record(1, 1))
    assert reader.poll(0.0) == [record(1, 1)]


def test_lag_counts_what_the_bus_told_of():
    fetcher = ScriptedFetcher()
    reader = EventReader(connect_to(fetcher), "t")
    reader.poll(0.0)
    fetcher.known_ends = {0: 5, 1: 1}
    assert (reader.lag(), reader.is_caught_up()) == (2, False)
    fetcher.known_ends = {0: 5}
    assert (reader.lag(), reader.is_caught_up()) == (None, False)


@pytest.mark.parametrize(("backlog", "offsets"), [(0, []), (1, [2]), (2, [1, 2]), (9, [0, 1, 2])])
def test_backlog(backlog, offsets):
    reader = EventReader(connect_to(ScriptedFetcher(ends=(3,))), "t", backlog)
    assert reader.poll(0.0) == []  # learns where the end is
    assert [r.offset for r in reader.poll(0.0)] == offsets
    assert reader.is_caught_up()


def test_error_is_survived_without_gap_or_duplicate():
    first, second = ScriptedFetcher(), ScriptedFetcher(ends=(4, 1))
    reader = EventReader(connect_to(first, "refused", second), "t")
    reader.poll(0.0)
    first.error = "connection lost"
    assert reader.poll(0.0) == []
    assert (first.is_closed, reader.is_connected()) == (True, False)
    assert (reader.last_error(), reader.lag()) == ("connection lost", None)
    assert reader.poll(0.0) == []
    assert reader.last_error() == "refused"
    assert reader.poll(0.0) == [record(0, 3)]
    assert reader.last_error() == ""


def test_other_topic_id_is_a_reset():
    first, second = ScriptedFetcher(), ScriptedFetcher(ends=(1, 0), topic_id="b")
    reader = EventReader(connect_to(first, second), "t")
    reader.poll(0.0)
    first.topic = "b"
    with pytest.raises(ResetRequired, match=r"t: topic id and partitions changed .*'a'.*'b'"):
        reader.poll(0.0)
    assert first.is_closed
    assert reader.poll(0.0) == [record(0, 0)]


def test_other_topic_id_after_reconnecting_is_a_reset():
    first = ScriptedFetcher()
    second, third = ScriptedFetcher(topic_id="b"), ScriptedFetcher(topic_id="b")
    reader = EventReader(connect_to(first, second, third), "t")
    reader.poll(0.0)
    first.error = "connection lost"
    reader.poll(0.0)
    with pytest.raises(ResetRequired):
        reader.poll(0.0)
    assert len(reader.poll(0.0)) == 4


def test_more_partitions_are_a_reset():
    fetcher = ScriptedFetcher(ends=(1,))
    reader = EventReader(connect_to(fetcher), "t")
    reader.poll(0.0)
    fetcher.log[1] = []
    fetcher.positions[1] = 0
    with pytest.raises(ResetRequired, match="changed from"):
        reader.poll(0.0)


def test_offset_already_passed_is_a_reset():
    fetcher = ScriptedFetcher(topic_id=None)
    reader = EventReader(connect_to(fetcher), "t")
    reader.poll(0.0)
    fetcher.seek(0, 0)
    with pytest.raises(ResetRequired, match="partition 0 gave offset 0 after 2"):
        reader.poll(0.0)


def test_shorter_log_is_a_reset_if_it_stays(monkeypatch):
    monkeypatch.setattr(event_reader, "SHRUNK_FOR_S", -1.0)
    fetcher = ScriptedFetcher(topic_id=None)
    reader = EventReader(connect_to(fetcher), "t")
    reader.poll(0.0)
    fetcher.log[0] = fetcher.log[0][:1]
    assert reader.poll(0.0) == []  # may be a new leader that is late
    with pytest.raises(ResetRequired, match="ends before what was already read"):
        reader.poll(0.0)


def test_shorter_log_for_a_moment_is_none(monkeypatch):
    monkeypatch.setattr(event_reader, "SHRUNK_FOR_S", -1.0)
    fetcher = ScriptedFetcher(topic_id=None)
    reader = EventReader(connect_to(fetcher), "t")
    reader.poll(0.0)
    whole = fetcher.log[0]
    for log in (whole[:1], whole, whole[:1], whole):
        fetcher.log[0] = log
        assert reader.poll(0.0) == []


def test_missing_topic_is_looked_for_again(monkeypatch):
    monkeypatch.setattr(event_reader, "MISSING_FOR_S", -1.0)
    first, second = ScriptedFetcher(), ScriptedFetcher(topic_id="b")
    reader = EventReader(connect_to(first, second, second), "t")
    reader.poll(0.0)
    first.log = {}
    reader.poll(0.0)
    reader.poll(0.0)
    assert reader.last_error() == "topic 't' is missing"
    with pytest.raises(ResetRequired):
        reader.poll(0.0)


def test_close_is_idempotent():
    fetcher = ScriptedFetcher()
    reader = EventReader(connect_to(fetcher), "t")
    reader.poll(0.0)
    reader.close()
    reader.close()
    assert (fetcher.is_closed, reader.is_connected()) == (True, False)
