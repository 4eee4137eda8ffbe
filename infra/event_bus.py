"""The log on Kafka: topics, producers, readers. The only importer of the Kafka client.

Owns client settings, the translation of client errors to BusError, and topic creation. What to do
about a broken connection is decided in `infra.event_producer` and `infra.event_reader`.

Client facts that shape this file (kafka-python 3.0): a client whose constructor fails leaves a
running thread behind unless its network client is closed; `send` to a topic without metadata
blocks; an idempotent producer can end in a state from which only a new one helps; without crc32c
it falls back to checksums in Python, ten times slower; its metrics, which nobody reads here, are
updated dozens of times for every request.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import time
import uuid
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource
from kafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    TopicAlreadyExistsError,
)
from kafka.net.compat import KafkaNetClient

from controllers.errors import BusError
from infra.bus_facts import BusFacts, TopicFacts
from infra.event_bus_base import OnDelivery, OnLoss, Record, Topics
from infra.event_producer import Done, EventProducer, ProducerLimits
from infra.event_reader import EventReader
from infra.kafka_address import parse_addresses, probe
from infra.kafka_log import ConnectionProblems
from infra.settings_sections import KafkaSettings
from infra.topic_specs import BATCH_OVERHEAD_BYTES, topic_specs

CONNECT_TIMEOUT_MS = 5_000
REQUEST_TIMEOUT_MS = 10_000
VISIBLE_TIMEOUT_S = 10.0

Client = TypeVar("Client")

# During an outage the client logs several errors a second; the producers and readers say it once.
logging.getLogger("kafka").propagate = False


class KafkaBus:
    """See `infra.event_bus_base.Bus`. Cheap to build: connects to nothing."""

    def __init__(self, settings: KafkaSettings, limits: ProducerLimits | None = None) -> None:
        if importlib.util.find_spec("crc32c") is None:
            raise BusError("the package crc32c is missing: pip install 'kafka-python[crc32c,lz4]'")
        parse_addresses(settings.bootstrap_servers or "")
        _check_security(settings.security)
        self.topics = Topics(settings.topic_prefix)
        self._settings = settings
        self._limits = limits or ProducerLimits(max_record_bytes=settings.max_record_bytes)

    def ensure_topics(self) -> None:
        ensure_topics(self._settings)

    def producer(
        self,
        on_delivery: OnDelivery | None = None,
        on_loss: OnLoss | None = None,
        linger_s: float = 0.0,
    ) -> EventProducer:
        def connect() -> KafkaSender:
            return KafkaSender(self._settings, self._limits.delivery_timeout_s)

        return EventProducer(
            connect, self.topics.all(), self._limits, on_delivery, on_loss, linger_s
        )

    def reader(self, topic: str, backlog: int | None = None) -> EventReader:
        if topic not in self.topics.all():
            raise BusError(f"unknown topic {topic!r}; valid: {', '.join(self.topics.all())}")
        return EventReader(lambda: KafkaFetcher(self._settings, topic), topic, backlog)


class KafkaSender:
    """See `infra.event_producer.Sender`. Construction blocks for seconds if the bus is slow."""

    def __init__(self, settings: KafkaSettings, delivery_timeout_s: float) -> None:
        ensure_topics(settings)
        self._has_failed = False
        delivery_timeout_ms = int(delivery_timeout_s * 1000)
        self._producer, self._client = _open(
            KafkaProducer,
            settings,
            acks="all",
            enable_idempotence=True,
            linger_ms=1,
            batch_size=131_072,
            compression_type="lz4",
            delivery_timeout_ms=delivery_timeout_ms,
            request_timeout_ms=min(REQUEST_TIMEOUT_MS, delivery_timeout_ms - 1),
            max_block_ms=1_000,
            metrics_enabled=False,
            retry_backoff_ms=50,
            metadata_max_age_ms=60_000,
            # Our own bound counts key and value; the client also counts its framing.
            max_request_size=settings.max_record_bytes + BATCH_OVERHEAD_BYTES,
            allow_auto_create_topics=False,
        )
        try:
            for topic in Topics(settings.topic_prefix).all():
                self._producer.partitions_for(topic)
        except KafkaError as error:
            self.close()
            raise _bus_error(settings, error) from error

    def send(self, topic: str, key: bytes, value: bytes, done: Done) -> None:
        try:
            future = self._producer.send(topic, value=value, key=key)
        except KafkaError as error:
            raise BusError(f"cannot send to {topic}: {_text(error)}") from error
        future.add_callback(lambda metadata: done("", metadata.partition, metadata.offset))
        future.add_errback(lambda error: self._fail(error, done))

    def is_usable(self) -> bool:
        return not self._has_failed

    def is_connected(self) -> bool:
        return _is_connected(self._client)

    def _fail(self, error: BaseException, done: Done) -> None:
        # The client repeats what can be repeated. What still fails may be its fatal state, shown
        # only in the failure of every later record, or a batch given up after a retry, after which
        # it can keep all the others without ever sending them.
        if not isinstance(error, MessageSizeTooLargeError):
            self._has_failed = True
        done(_text(error), -1, -1)

    def close(self) -> None:
        # Without force, close() waits for records that may never go out, and then closes nothing.
        self._producer._sender.force_close()
        try:
            self._producer.close(timeout=1.0)
        except KafkaError:
            self._producer._closed = True  # or the finalizer would wait and fail once more


class KafkaFetcher:
    """See `infra.event_reader.Fetcher`. Construction blocks for seconds if the bus is slow."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        ensure_topics(settings)
        self._topic = topic
        self._consumer, self._client = _open(
            KafkaConsumer,
            settings,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=500,
            fetch_min_bytes=1,
            max_poll_records=2_000,
            metrics_enabled=False,
            max_partition_fetch_bytes=max(1_048_576, settings.max_record_bytes * 2),
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            metadata_max_age_ms=10_000,  # how soon a topic created again is noticed when idle
            allow_auto_create_topics=False,
        )
        partitions = sorted(self._consumer.partitions_for_topic(topic) or ())
        if not partitions:
            self.close()
            raise BusError(f"topic {topic!r} has no partitions")
        self._assigned = [TopicPartition(topic, partition) for partition in partitions]
        self._consumer.assign(self._assigned)
        self._consumer.seek_to_beginning(*self._assigned)

    def partitions(self) -> tuple[int, ...]:
        return tuple(sorted(self._client.cluster.partitions_for_topic(self._topic) or ()))

    def topic_id(self) -> str | None:
        topic_id: uuid.UUID | None = self._client.cluster.topic_id(self._topic)
        return None if topic_id is None or topic_id.int == 0 else str(topic_id)

    def poll(self, timeout_s: float) -> list[Record]:
        try:
            batches = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        except KafkaError as error:
            raise BusError(f"cannot read {self._topic}: {_text(error)}") from error
        return [
            Record(r.partition, r.offset, r.timestamp, r.key or b"", r.value or b"")
            for records in batches.values()
            for r in records
        ]

    def position(self, partition: int) -> int | None:
        position: int | None = self._consumer.position(
            TopicPartition(self._topic, partition), timeout_ms=0
        )
        return position

    def end(self, partition: int) -> int | None:
        end: int | None = self._consumer.highwater(TopicPartition(self._topic, partition))
        return end

    def seek(self, partition: int, offset: int) -> None:
        self._consumer.seek(TopicPartition(self._topic, partition), offset)

    def is_connected(self) -> bool:
        return _is_connected(self._client)

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=1_000)


def ensure_topics(settings: KafkaSettings) -> None:
    """Create the topics that are missing; leave existing ones as they are.

    Raises BusError if the bus cannot be reached, refuses, or has a topic with another number of
    partitions (records of one worker would be spread over two partitions' orders).
    """
    specs = topic_specs(settings)
    admin, _ = _open(KafkaAdminClient, settings, request_timeout_ms=REQUEST_TIMEOUT_MS)
    try:
        existing = _num_partitions_by_topic(admin)
        missing = specs.keys() - existing.keys()
        if missing:
            _create(admin, {topic: specs[topic] for topic in missing})
            existing = _wait_for_topics(admin, specs.keys())
    except KafkaError as error:
        raise _bus_error(settings, error) from error
    finally:
        admin.close()
    for topic in specs:
        _check_partitions(topic, existing.get(topic, 0), settings.num_partitions)


def is_answering(bootstrap_servers: str, timeout_s: float) -> bool:
    """True if a plain-text broker there answers a metadata request within about `timeout_s`."""
    settings = KafkaSettings(bootstrap_servers=bootstrap_servers)
    try:
        admin, _ = _open(
            KafkaAdminClient, settings, bootstrap_timeout_ms=max(100, int(timeout_s * 1000))
        )
    except BusError:
        return False
    try:
        admin.list_topics()
    except KafkaError:
        return False
    finally:
        admin.close()
    return True


def inspect(settings: KafkaSettings, timeout_s: float) -> BusFacts:
    """What is there of a bus and of this product's topics; changes nothing.

    Every request may take `timeout_s`. Raises BusError if the bus cannot be reached or refuses to
    be looked at.
    """
    timeout_ms = int(timeout_s * 1000)
    admin, client = _open(
        KafkaAdminClient,
        settings,
        request_timeout_ms=timeout_ms,
        bootstrap_timeout_ms=timeout_ms,
    )
    specs = topic_specs(settings)
    try:
        brokers = [broker.node_id for broker in client.cluster.brokers()]
        return BusFacts(
            num_brokers=len(brokers),
            version=tuple(admin.get_broker_version_data(brokers[0]).broker_version),
            clock_ahead_s=_clock_ahead_s(admin),
            refusal=_refusal(admin, specs),
            topics={
                topic["name"]: _topic_facts(admin, topic)
                for topic in admin.describe_topics()
                if topic["name"] in specs
            },
        )
    except KafkaError as error:
        raise _bus_error(settings, error) from error
    finally:
        admin.close()


def _clock_ahead_s(admin: Any) -> float | None:
    """The leader of the brokers' quorum says of itself that it is up to date now, by its clock."""
    try:
        (partition,) = admin.describe_metadata_quorum()["topics"][0]["partitions"]
    except (KafkaError, ValueError, KeyError, IndexError):
        return None  # no such quorum (before Kafka 3.3), or not for this user
    now_s = time.time()
    stamps = [
        voter.get("last_caught_up_timestamp", -1)
        for voter in partition["current_voters"]
        if voter["replica_id"] == partition["leader_id"]
    ]
    return stamps[0] / 1e3 - now_s if stamps and stamps[0] > 0 else None


def _refusal(admin: Any, specs: dict[str, dict[str, Any]]) -> str:
    """Why a topic as ours are could not be created; nothing is."""
    spec = next(iter(specs.values()))
    try:
        admin.create_topics({f"cachelane-probe-{uuid.uuid4().hex}": spec}, validate_only=True)
    except KafkaError as error:
        message = re.search(r"error_message='([^']*)'", str(error))
        return message[1] if message else _text(error)
    return ""


def _topic_facts(admin: Any, topic: dict[str, Any]) -> TopicFacts:
    partitions = topic["partitions"]
    try:
        found = admin.describe_configs(
            [ConfigResource("TOPIC", topic["name"])], config_filter="All"
        )
        configs = {name: str(c["value"]) for name, c in found["topic"][topic["name"]].items()}
    except (KafkaError, KeyError):
        configs = None
    return TopicFacts(
        num_partitions=len(partitions),
        replication_factor=min((len(p["replica_nodes"]) for p in partitions), default=0),
        num_under_replicated=sum(len(p["isr_nodes"]) < len(p["replica_nodes"]) for p in partitions),
        configs=configs,
    )


def _num_partitions_by_topic(admin: Any) -> dict[str, int]:
    topics = admin.describe_topics()
    return {topic["name"]: len(topic["partitions"]) for topic in topics if topic["partitions"]}


def _wait_for_topics(admin: Any, topics: Collection[str]) -> dict[str, int]:
    """What another process has created exists before the metadata tell of it."""
    deadline_s = time.monotonic() + VISIBLE_TIMEOUT_S
    while True:
        existing = _num_partitions_by_topic(admin)
        if existing.keys() >= set(topics) or time.monotonic() > deadline_s:
            return existing
        time.sleep(0.05)


def _create(admin: Any, specs: dict[str, dict[str, Any]]) -> None:
    """Create one by one: another process may create the same ones at the same time."""
    for topic, spec in specs.items():
        try:
            admin.create_topics({topic: spec}, timeout_ms=REQUEST_TIMEOUT_MS)
        except TopicAlreadyExistsError:
            continue


def _check_partitions(topic: str, found: int, wanted: int) -> None:
    if found == 0:
        raise BusError(f"topic {topic!r} was created and is not there")
    if found != wanted:
        raise BusError(
            f"topic {topic!r} has {found} partitions, the settings say {wanted}: "
            f"set kafka.num_partitions to {found}, or choose another kafka.topic_prefix"
        )


def _check_security(security: Collection[str]) -> None:
    valid = [
        name
        for name in KafkaConsumer.DEFAULT_CONFIG
        if name.startswith(("security_protocol", "ssl_", "sasl_"))
    ]
    for name in security:
        if name not in valid:
            raise BusError(f"kafka.security has unknown {name!r}; valid: {', '.join(valid)}")


def _open(
    make: Callable[..., Client], settings: KafkaSettings, **options: Any
) -> tuple[Client, KafkaNetClient]:
    """Build a client and return it with its network client, which is closed if building fails."""
    servers = settings.bootstrap_servers or ""
    probe(servers)
    made: list[KafkaNetClient] = []

    def make_net_client(**configs: Any) -> KafkaNetClient:
        made.append(KafkaNetClient(**configs))
        return made[-1]

    configs: dict[str, Any] = {
        "bootstrap_servers": [f"{host}:{port}" for host, port in parse_addresses(servers)],
        "bootstrap_timeout_ms": CONNECT_TIMEOUT_MS,
        "client_id": "cachelane",
        "reconnect_backoff_max_ms": 1_000,
        "kafka_client": make_net_client,
        **settings.security,
        **options,
    }
    with ConnectionProblems() as problems:
        try:
            return make(**configs), made[0]
        except (KafkaError, OSError, ValueError, TypeError, AssertionError) as error:
            for net_client in made:
                net_client.close()
            raise _bus_error(settings, error, problems.last) from error


def _is_connected(client: KafkaNetClient) -> bool:
    return any(client.connected(broker.node_id) for broker in client.cluster.brokers())


def _bus_error(settings: KafkaSettings, error: Exception, reason: str = "") -> BusError:
    because = f" ({reason})" if reason else ""
    return BusError(f"Kafka at {settings.bootstrap_servers}: {_text(error)}{because}")


def _text(error: BaseException) -> str:
    """One line; the client's own errors already start with their class."""
    text = (str(error).splitlines() or [""])[0]
    name = type(error).__name__
    return text if name in text else f"{name}: {text}"
