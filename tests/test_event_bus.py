"""What the bus refuses before it connects to anything."""

from __future__ import annotations

import msgspec
import pytest
from kafka import KafkaAdminClient

from controllers.errors import BusError
from infra.event_bus import KafkaBus
from infra.kafka_admin import ensure_topics, is_answering
from infra.settings_sections import KafkaSecurity, KafkaSettings


def test_embedded_broker_must_be_resolved_first():
    with pytest.raises(BusError, match="bootstrap_servers is ''"):
        KafkaBus(KafkaSettings())


def test_security_settings_are_taken():
    security = KafkaSecurity(
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username="u",
        sasl_plain_password="p",
        ssl_cafile="/ca.pem",
        ssl_check_hostname=True,
    )
    bus = KafkaBus(KafkaSettings(bootstrap_servers="a:1", topic_prefix="p", security=security))
    names = ("kv-events", "decisions", "scaling", "bookings", "uses")
    assert bus.topics.all() == tuple(f"p.{name}" for name in names)


def test_the_administrative_client_is_given_what_is_set_and_nothing_else():
    security = KafkaSecurity(security_protocol="SSL", ssl_check_hostname=False)
    plain = {"security_protocol": "SSL", "ssl_check_hostname": False}
    assert msgspec.to_builtins(security) == plain
    assert msgspec.to_builtins(KafkaSecurity()) == {}
    assert plain.keys() <= KafkaAdminClient.DEFAULT_CONFIG.keys()


def test_nothing_listens():
    settings = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(BusError, match="no Kafka at 127.0.0.1:1: .*refused"):
        ensure_topics(settings)
    assert not is_answering("127.0.0.1:1", 1.0)
