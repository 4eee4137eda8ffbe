"""Topics on Kafka: what must be there before anything is sent or read.

Owns the administrative client, the translation of its errors to BusError, and topic creation.

Client facts that shape this file (kafka-python 3.0): a client whose constructor fails leaves a
running thread behind unless its network client is closed, and says only that it timed out. It is
used here, and not for records, since it tells what the other client does not: brokers' versions,
the quorum's clock, why a connection failed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import Any

import msgspec
from kafka import KafkaAdminClient
from kafka.errors import KafkaError, TopicAlreadyExistsError
from kafka.net.compat import KafkaNetClient

from controllers.errors import BusError
from infra.kafka_address import parse_addresses, probe
from infra.kafka_log import ConnectionProblems
from infra.settings_sections import KafkaSettings
from infra.topic_specs import topic_specs

CONNECT_TIMEOUT_MS = 5_000
REQUEST_TIMEOUT_MS = 10_000
VISIBLE_TIMEOUT_S = 10.0

# During an outage the client logs several errors a second; the producers and readers say it once.
logging.getLogger("kafka").propagate = False


def ensure_topics(settings: KafkaSettings) -> None:
    """Create the topics that are missing; leave existing ones as they are.

    Raises BusError if the bus cannot be reached, refuses, or has a topic with another number of
    partitions (records of one worker would be spread over two partitions' orders).
    """
    specs = topic_specs(settings)
    admin, _ = open_admin(settings, request_timeout_ms=REQUEST_TIMEOUT_MS)
    try:
        existing = _num_partitions_by_topic(admin)
        missing = specs.keys() - existing.keys()
        if missing:
            _create(admin, {topic: specs[topic] for topic in missing})
            existing = _wait_for_topics(admin, specs.keys())
    except KafkaError as error:
        raise bus_error(settings, error) from error
    finally:
        admin.close()
    for topic in specs:
        _check_partitions(topic, existing.get(topic, 0), settings.num_partitions)


def is_answering(bootstrap_servers: str, timeout_s: float) -> bool:
    """True if a plain-text broker there answers a metadata request within about `timeout_s`."""
    settings = KafkaSettings(bootstrap_servers=bootstrap_servers)
    try:
        admin, _ = open_admin(settings, bootstrap_timeout_ms=max(100, int(timeout_s * 1000)))
    except BusError:
        return False
    try:
        admin.list_topics()
    except KafkaError:
        return False
    finally:
        admin.close()
    return True


def open_admin(settings: KafkaSettings, **options: Any) -> tuple[Any, KafkaNetClient]:
    """A client and its network client, which is closed if connecting fails. Raises BusError."""
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
        **msgspec.to_builtins(settings.security),
        **options,
    }
    with ConnectionProblems() as problems:
        try:
            return KafkaAdminClient(**configs), made[0]
        except (KafkaError, OSError, ValueError, TypeError, AssertionError) as error:
            for net_client in made:
                net_client.close()
            raise bus_error(settings, error, problems.last) from error


def bus_error(settings: KafkaSettings, error: Exception, reason: str = "") -> BusError:
    because = f" ({reason})" if reason else ""
    return BusError(f"Kafka at {settings.bootstrap_servers}: {text_of(error)}{because}")


def text_of(error: BaseException) -> str:
    """One line; the client's own errors already start with their class."""
    text = (str(error).splitlines() or [""])[0]
    name = type(error).__name__
    return text if name in text else f"{name}: {text}"


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
