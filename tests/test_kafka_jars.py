"""The lock of the embedded broker's jars and what happens to files that differ from it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from controllers.errors import BrokerError
from infra.kafka_jars import Lock, ensure_jars, sha256

HASH_A = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"  # of b"a"
HASH_B = "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d"  # of b"b"
LOCK = Lock(("g:x:1",), {"a.jar": HASH_A, "b.jar": HASH_B})


def put(folder: Path, **name_to_content: bytes) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in name_to_content.items():
        (folder / f"{name}.jar").write_bytes(content)
    return sorted(folder.iterdir())


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Fetcher:
    def __init__(self, jars: list[Path]) -> None:
        self.jars = jars
        self.calls: list[list[str]] = []

    def __call__(self, coordinates: Iterable[str]) -> list[Path]:
        self.calls.append(list(coordinates))
        return self.jars


@pytest.fixture
def libs(tmp_path: Path) -> Path:
    return tmp_path / "state" / "libs"


def test_committed_lock():
    lock = Lock.load()
    assert lock.coordinates == (
        "org.apache.kafka:kafka_2.13:4.3.1",
        "org.slf4j:slf4j-simple:1.7.36",
    )
    assert len(lock.jar_to_sha256) == 46
    for name, digest in lock.jar_to_sha256.items():
        assert name.endswith(".jar")
        assert re.fullmatch("[0-9a-f]{64}", digest)


def test_lock_survives_a_round_trip(tmp_path):
    LOCK.save(tmp_path / "lock.json")
    assert Lock.load(tmp_path / "lock.json") == LOCK


def test_sha256(tmp_path):
    (path,) = put(tmp_path, a=b"a")
    assert sha256(path) == HASH_A


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"a": b"a", "b": b"b"}, ""),
        ({"a": b"a"}, "1 jars of the lock are missing, such as b.jar"),
        ({"a": b"a", "b": b"b", "c": b"c"}, "1 jars are not in the lock, such as c.jar"),
        ({"a": b"a", "b": b"B"}, "b.jar has a sha256 other than the lock's"),
        ({}, "2 jars of the lock are missing, such as a.jar"),
    ],
)
def test_faults(tmp_path, files, fault):
    assert LOCK.find_fault(put(tmp_path / "jars", **files)).endswith(fault)


def test_first_start_fetches_and_copies(tmp_path, libs):
    fetch = Fetcher(put(tmp_path / "cache", a=b"a", b=b"b"))
    messages: list[str] = []
    ensure_jars(libs, LOCK, fetch, messages.append)
    assert content(libs) == {"a.jar": b"a", "b.jar": b"b"}
    assert fetch.calls == [["g:x:1"]]
    assert messages == ["fetching Apache Kafka (45 MB, once)"]
    assert [path.name for path in libs.parent.iterdir()] == ["libs"]


def test_second_start_fetches_nothing(tmp_path, libs):
    put(libs, a=b"a", b=b"b")
    fetch = Fetcher([])
    ensure_jars(libs, LOCK, fetch)
    assert fetch.calls == []


@pytest.mark.parametrize(
    "damage", [{"a": b"a", "b": b"tampered"}, {"a": b"a"}, {"a": b"a", "b": b"b", "old": b"x"}]
)
def test_damaged_folder_is_replaced(tmp_path, libs, damage):
    put(libs, **damage)
    ensure_jars(libs, LOCK, Fetcher(put(tmp_path / "cache", a=b"a", b=b"b")))
    assert content(libs) == {"a.jar": b"a", "b.jar": b"b"}


def test_tampered_download_is_refused_and_nothing_changes(tmp_path, libs):
    put(libs, a=b"a")
    tampered = put(tmp_path / "cache", a=b"a", b=b"tampered")
    with pytest.raises(BrokerError, match=r"not the locked one: .*b\.jar has a sha256 other"):
        ensure_jars(libs, LOCK, Fetcher(tampered))
    assert content(libs) == {"a.jar": b"a"}
    assert [path.name for path in libs.parent.iterdir()] == ["libs"]


def test_failed_fetch_changes_nothing(libs):
    put(libs, a=b"a")

    def fetch(coordinates: Iterable[str]) -> list[Path]:
        raise BrokerError("cannot fetch Kafka: no network")

    with pytest.raises(BrokerError, match="no network"):
        ensure_jars(libs, LOCK, fetch)
    assert content(libs) == {"a.jar": b"a"}


def test_folder_that_cannot_be_written(tmp_path):
    cache = put(tmp_path / "cache", a=b"a", b=b"b")
    target = tmp_path / "libs"
    target.write_text("a file, not a folder")
    with pytest.raises(BrokerError, match="cannot write .*libs"):
        ensure_jars(target, LOCK, Fetcher(cache))
    assert target.read_text() == "a file, not a folder"
