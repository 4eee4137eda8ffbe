"""How settings become the options of the client for records, and what its statistics say."""

from __future__ import annotations

from typing import Any

from infra.kafka_options import SECURITY_OPTIONS, Connection, client_options
from infra.settings_sections import KafkaSecurity, KafkaSettings

COMMON = {
    "bootstrap.servers": "a:1,b:2",
    "client.id": "cachelane",
    "reconnect.backoff.max.ms": 1_000,
    "topic.metadata.refresh.interval.ms": 60_000,
    "allow.auto.create.topics": False,
    "log_level": 0,
}


def settings(**security: Any) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers="a:1,b:2", security=KafkaSecurity(**security))


def test_without_security():
    assert client_options(settings()) == COMMON


def test_security_by_the_clients_names():
    given = settings(
        security_protocol="SASL_SSL",
        ssl_check_hostname=True,
        ssl_cafile="/ca",
        ssl_certfile="/cert",
        ssl_keyfile="/key",
        ssl_password="s",
        ssl_crlfile="/crl",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username="u",
        sasl_plain_password="p",
    )
    assert client_options(given) == COMMON | {
        "security.protocol": "SASL_SSL",
        "ssl.endpoint.identification.algorithm": "https",
        "ssl.ca.location": "/ca",
        "ssl.certificate.location": "/cert",
        "ssl.key.location": "/key",
        "ssl.key.password": "s",
        "ssl.crl.location": "/crl",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": "p",
    }


def test_hostnames_unchecked_and_what_is_not_set():
    given = settings(security_protocol="SSL", ssl_check_hostname=False, ssl_cafile=None)
    assert client_options(given) == COMMON | {
        "security.protocol": "SSL",
        "ssl.endpoint.identification.algorithm": "none",
    }


def test_every_security_setting_has_a_name_of_the_clients():
    assert set(SECURITY_OPTIONS) == set(KafkaSecurity.__struct_fields__)


def test_connection_follows_the_statistics():
    connection = Connection()
    options = client_options(settings(), connection)
    assert options == COMMON | {
        "statistics.interval.ms": 1_000,
        "stats_cb": connection.on_statistics,
    }
    found = [connection.is_up]
    for states in ([], ["INIT"], ["DOWN", "UP"], ["CONNECT", "DOWN"]):
        brokers = ",".join(f'"{n}":{{"nodeid":1,"state":"{s}"}}' for n, s in enumerate(states))
        connection.on_statistics(f'{{"ts":1,"brokers":{{{brokers}}},"topics":{{}}}}')
        found.append(connection.is_up)
    assert found == [True, False, False, True, False]
