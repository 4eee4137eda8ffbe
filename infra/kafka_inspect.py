"""What is there of a Kafka cluster and of this product's topics; changes nothing."""

from __future__ import annotations

import re
import time
import uuid
from typing import Any

from kafka.admin import ConfigResource
from kafka.errors import KafkaError

from infra.bus_facts import BusFacts, TopicFacts
from infra.kafka_admin import bus_error, open_admin, text_of
from infra.settings_sections import KafkaSettings
from infra.topic_specs import topic_specs


def inspect(settings: KafkaSettings, timeout_s: float) -> BusFacts:
    """Every request may take `timeout_s`. Raises BusError if the bus cannot be reached or refuses
    to be looked at."""
    timeout_ms = int(timeout_s * 1000)
    admin, client = open_admin(
        settings, request_timeout_ms=timeout_ms, bootstrap_timeout_ms=timeout_ms
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
        raise bus_error(settings, error) from error
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
        return message[1] if message else text_of(error)
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
