"""The embedded broker and the bus on it, as they run: start, crash, restart, loss of everything."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil
import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.partitioner.default import murmur2

from controllers.errors import BrokerError, BusError
from infra.event_bus import KafkaBus
from infra.event_bus_base import Loss, Producer, Reader, Record, ResetRequired
from infra.event_producer import ProducerLimits
from infra.kafka_admin import ensure_topics, is_answering
from infra.kafka_jars import fetch_jars
from infra.local_broker import BrokerPaths, LocalBroker
from infra.local_broker_tansu import attach_local_broker, start_local_broker
from infra.settings_sections import KafkaSettings
from infra.topic_specs import topic_specs
from tests.kafka_fixtures import TestBroker, fresh_settings, wait_until

pytestmark = pytest.mark.kafka

KEY = b"worker-1"


@pytest.fixture(scope="module")
def spare_broker(
    kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestBroker]:
    broker = TestBroker(tmp_path_factory.mktemp("spare") / "state: ü, 2", kafka_libs)
    yield broker
    broker.running.stop()


@pytest.fixture
def own_broker(spare_broker: TestBroker) -> TestBroker:
    """A broker that tests may damage, in a folder whose name needs care."""
    spare_broker.bring_up()
    return spare_broker


def read(reader: Reader, count: int) -> list[Record]:
    records: list[Record] = []

    def is_enough() -> bool:
        records.extend(reader.poll(0.1))
        return len(records) >= count

    wait_until(is_enough)
    return records


def publish(bus: KafkaBus, *values: bytes) -> None:
    producer = bus.producer()
    for value in values:
        assert producer.publish(bus.topics.kv_events, KEY, value)
    wait_until(lambda: producer.health().num_published == len(values))
    producer.close()


def wait_until_through(producer: Producer, publish_one: Callable[[], None]) -> None:
    """Until all is settled and something new got there: a slow start costs impatient ones some."""
    before = producer.health().num_published

    def is_through() -> bool:
        publish_one()
        return producer.flush(0.5) and producer.health().num_published > before

    wait_until(is_through)


def test_start_twice_is_one_process(kafka_broker):
    again = LocalBroker.start(kafka_broker.state_dir)
    attached = LocalBroker.attach(kafka_broker.state_dir)
    assert again.pid == attached.pid == kafka_broker.running.pid
    assert again.bootstrap == attached.bootstrap == kafka_broker.bootstrap
    assert is_answering(again.bootstrap, 5.0)


def test_listens_on_loopback_only(kafka_broker):
    connections = psutil.Process(kafka_broker.running.pid).net_connections("tcp")
    listening = {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
    assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


def test_killed_broker_comes_back_with_its_data_on_its_port(own_broker):
    bus = KafkaBus(fresh_settings(own_broker.bootstrap))
    paths = BrokerPaths(own_broker.state_dir.resolve())
    publish(bus, b"1", b"2", b"3")
    before = (own_broker.bootstrap, paths.meta.read_text())
    own_broker.take_down()
    assert LocalBroker.attach(own_broker.state_dir) is None
    own_broker.bring_up()
    assert (own_broker.bootstrap, paths.meta.read_text()) == before
    reader = bus.reader(bus.topics.kv_events)
    assert [record.value for record in read(reader, 3)] == [b"1", b"2", b"3"]
    reader.close()


def test_moves_to_another_port_if_its_own_is_taken(own_broker):
    settings = fresh_settings(own_broker.bootstrap)
    publish(KafkaBus(settings), b"1")
    host, _, port = own_broker.bootstrap.partition(":")
    own_broker.running.stop()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen()
        with pytest.raises(BrokerError, match=f"port {port} .* in use"):
            LocalBroker.start(own_broker.state_dir, port=int(port))
        own_broker.bring_up()
    assert own_broker.bootstrap != settings.bootstrap_servers
    moved = KafkaSettings(
        bootstrap_servers=own_broker.bootstrap,
        topic_prefix=settings.topic_prefix,
        num_partitions=settings.num_partitions,
    )
    bus = KafkaBus(moved)
    reader = bus.reader(bus.topics.kv_events)
    assert [record.value for record in read(reader, 1)] == [b"1"]
    reader.close()


def test_both_sides_heal_after_the_broker_lost_everything(own_broker):
    bus = KafkaBus(fresh_settings(own_broker.bootstrap))
    topic = bus.topics.kv_events
    producer = bus.producer()
    assert all(producer.publish(topic, KEY, b"old") for _ in range(5))
    wait_until(lambda: producer.health().num_published == 5)
    reader = bus.reader(topic)
    read(reader, 5)

    own_broker.take_down()
    shutil.rmtree(BrokerPaths(own_broker.state_dir.resolve()).home / "kraft")
    own_broker.bring_up()

    def is_reset() -> bool:
        producer.publish(topic, KEY, b"new")
        try:
            reader.poll(0.2)
        except ResetRequired:
            return True
        return False

    wait_until(is_reset)
    (first, *_) = read(reader, 1)
    assert (first.offset, first.value) == (0, b"new")
    wait_until(lambda: producer.health().is_connected)  # the client says so once a second
    reader.close()
    producer.close()


def test_an_outage_loses_what_waited_too_long_and_nothing_younger(own_broker):
    patience_s = 2.0
    limits = ProducerLimits(delivery_timeout_s=patience_s)
    bus = KafkaBus(fresh_settings(own_broker.bootstrap), limits)
    published_at: dict[bytes, float] = {}
    ages: list[tuple[bytes, float]] = []

    def note(loss: Loss) -> None:
        ages.append((loss.value, time.monotonic() - published_at[loss.value]))

    producer = bus.producer(on_loss=note)
    topic = bus.topics.kv_events

    def publish_one() -> None:
        value = b"%d" % len(published_at)
        published_at[value] = time.monotonic()
        assert producer.publish(topic, KEY, value)

    wait_until_through(producer, publish_one)
    ages.clear()
    before = producer.health()
    num_before = len(published_at)

    def has_lost_one() -> bool:
        publish_one()
        return bool(ages)

    broker = psutil.Process(own_broker.running.pid)
    broker.suspend()
    try:
        wait_until(has_lost_one)
    finally:
        broker.resume()
    wait_until_through(producer, publish_one)
    assert all(age_s >= patience_s for _, age_s in ages)
    health = producer.health()
    assert (health.num_failed - before.num_failed, health.num_connects) == (len(ages), 1)
    num_published = health.num_published - before.num_published
    assert num_published == len(published_at) - num_before - len(ages)
    producer.close()


def test_producer_resumes_after_an_outage_longer_than_its_patience(kafka_broker):
    settings = fresh_settings(kafka_broker.bootstrap)
    bus = KafkaBus(settings, ProducerLimits(delivery_timeout_s=1.0))
    losses: list[Loss] = []
    producer = bus.producer(on_loss=losses.append)
    topic = bus.topics.kv_events

    def publish_one() -> None:
        assert producer.publish(topic, KEY, b"x")

    wait_until_through(producer, publish_one)
    losses.clear()
    kafka_broker.take_down()
    for i in range(200):
        assert producer.publish(topic, KEY, b"%d" % i)
    wait_until(lambda: len(losses) == 200)
    kafka_broker.bring_up()
    wait_until_through(producer, publish_one)
    wait_until(lambda: producer.health().is_connected)
    producer.close()


def test_topics_are_created_as_specified(kafka_broker):
    settings = fresh_settings(kafka_broker.bootstrap)
    ensure_topics(settings)
    ensure_topics(settings)
    specs = topic_specs(settings)
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in specs]
    admin = KafkaAdminClient(bootstrap_servers=kafka_broker.bootstrap)
    try:
        described = {t["name"]: len(t["partitions"]) for t in admin.describe_topics(list(specs))}
        configs = admin.describe_configs(resources, config_filter="all")["topic"]
    finally:
        admin.close()
    assert described == dict.fromkeys(specs, settings.num_partitions)
    found = {
        topic: {name: configs[topic][name]["value"] for name in spec["configs"]}
        for topic, spec in specs.items()
    }
    assert found == {topic: spec["configs"] for topic, spec in specs.items()}


def test_a_key_has_the_partition_that_other_clients_give_it(kafka_broker):
    settings = fresh_settings(kafka_broker.bootstrap, num_partitions=12)
    bus, deliveries = KafkaBus(settings), []
    producer = bus.producer(on_delivery=deliveries.append)
    for number in range(30):
        assert producer.publish(bus.topics.decisions, b"worker-%d" % number, b"x")
    assert producer.flush(30.0)
    producer.close()
    assert {d.key: d.partition for d in deliveries} == {
        key: (murmur2(key) & 0x7FFFFFFF) % settings.num_partitions
        for key in (b"worker-%d" % number for number in range(30))
    }


def test_other_partition_count_is_refused(kafka_broker):
    settings = fresh_settings(kafka_broker.bootstrap, num_partitions=2)
    ensure_topics(settings)
    other = KafkaSettings(
        bootstrap_servers=settings.bootstrap_servers,
        topic_prefix=settings.topic_prefix,
        num_partitions=3,
    )
    with pytest.raises(BusError, match="has 2 partitions, the settings say 3"):
        ensure_topics(other)
    ensure_topics(settings)


def test_topics_created_by_several_at_once(kafka_broker):
    settings = fresh_settings(kafka_broker.bootstrap)
    errors: list[BusError] = []

    def create() -> None:
        try:
            ensure_topics(settings)
        except BusError as error:
            errors.append(error)

    threads = [threading.Thread(target=create) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_address_that_does_not_speak_kafka(monkeypatch):
    """Construction, publish and close return at once, and attempts leave no thread behind."""
    monkeypatch.setattr("infra.kafka_admin.CONNECT_TIMEOUT_MS", 300)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        bus = KafkaBus(KafkaSettings(bootstrap_servers=address))
        producer = bus.producer()
        assert producer.publish(bus.topics.kv_events, KEY, b"x")
        wait_until(lambda: "KafkaTimeoutError" in producer.health().last_error)
        reader = bus.reader(bus.topics.kv_events)
        assert reader.poll(0.0) == []
        assert "KafkaTimeoutError" in reader.last_error()
        producer.close(0.0)
        reader.close()
        wait_until(lambda: not [t for t in threading.enumerate() if "kafka-io" in t.name])


def test_jars_that_cannot_be_fetched(tmp_path, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        proxy = f"http://127.0.0.1:{unused.getsockname()[1]}"
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, proxy)
        monkeypatch.setenv("JGO_CACHE_DIR", str(tmp_path / "jgo"))
        monkeypatch.setenv("M2_REPO", str(tmp_path / "m2"))
        with pytest.raises(BrokerError, match=r"^cannot fetch Kafka \(.*KAFKA=host:port$"):
            fetch_jars(["org.slf4j:slf4j-simple:1.7.36"])


def test_tansu_where_kafka_cannot_be_fetched(tmp_path):
    def fetch(coordinates: Iterable[str]) -> list[Path]:
        raise BrokerError("cannot fetch Kafka (no network)")

    messages: list[str] = []
    broker = start_local_broker(tmp_path, messages.append, fetch)
    try:
        assert not broker.is_durable
        assert [m for m in messages if m.startswith("WARNING")] == [
            "WARNING: cannot fetch Kafka (no network). "
            "Using Tansu instead: for development only, it keeps nothing"
        ]
        attached = attach_local_broker(tmp_path)
        assert (attached.pid, attached.bootstrap) == (broker.pid, broker.bootstrap)
        bus = KafkaBus(fresh_settings(broker.bootstrap))
        publish(bus, b"1", b"2")
        reader = bus.reader(bus.topics.kv_events, backlog=1)
        assert [record.value for record in read(reader, 1)] == [b"2"]
        reader.close()
    finally:
        broker.stop()
    assert attach_local_broker(tmp_path) is None


def test_broker_that_dies_while_starting_says_why(own_broker):
    own_broker.running.stop()
    meta = BrokerPaths(own_broker.state_dir.resolve()).meta
    text = meta.read_text()
    meta.write_text(text.replace("node.id=1", "node.id=7"))
    with pytest.raises(BrokerError, match=r"Kafka ended while starting: .*node.*kafka\.log\)"):
        own_broker.bring_up()
    meta.write_text(text)
    own_broker.bring_up()
    assert is_answering(own_broker.bootstrap, 5.0)
