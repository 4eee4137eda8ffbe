"""Fixtures for tests that need a broker: one embedded Kafka for the session, jars fetched once.

`tests/conftest.py` imports the three fixtures from here.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from infra.kafka_jars import Lock, ensure_jars
from infra.local_broker import LocalBroker
from infra.settings_sections import KafkaSettings

# Jars outlive the session: only the first run on a machine needs the network.
SHARED_LIBS = Path(__file__).parent.parent / ".cachelane" / "test-kafka-libs"


@pytest.fixture(scope="session")
def kafka_libs() -> Path:
    """A folder with the broker's jars, shared by every test and every session."""
    ensure_jars(SHARED_LIBS, Lock.load())
    return SHARED_LIBS


class TestBroker:
    """The session's broker; tests may take it down, the next test finds it up again."""

    __test__ = False

    def __init__(self, state_dir: Path, libs_dir: Path) -> None:
        self.state_dir = state_dir
        self._libs_dir = libs_dir
        self.running = self.bring_up()

    @property
    def bootstrap(self) -> str:
        return self.running.bootstrap

    def take_down(self) -> None:
        self.running.kill()

    def bring_up(self) -> LocalBroker:
        self.running = LocalBroker.start(self.state_dir, libs_dir=self._libs_dir)
        return self.running


@pytest.fixture(scope="session")
def kafka_session(
    kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestBroker]:
    broker = TestBroker(tmp_path_factory.mktemp("broker"), kafka_libs)
    yield broker
    broker.running.stop()


@pytest.fixture
def kafka_broker(kafka_session: TestBroker) -> TestBroker:
    """A running broker, started once for the session."""
    kafka_session.bring_up()
    return kafka_session


def fresh_settings(bootstrap: str, num_partitions: int = 3) -> KafkaSettings:
    """Settings with topics that no other test uses."""
    return KafkaSettings(
        bootstrap_servers=bootstrap,
        topic_prefix=f"test-{uuid.uuid4().hex[:8]}",
        num_partitions=num_partitions,
    )


def recreate_topic(bootstrap: str, topic: str, num_partitions: int) -> None:
    """Delete a topic and create it anew, as an administrator might."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.delete_topics([topic])
        wait_until(lambda: topic not in admin.list_topics())
        spec = {"num_partitions": num_partitions, "replication_factor": 1}
        admin.create_topics({topic: spec}, wait_for_metadata=True)
    finally:
        admin.close()


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.02)
