"""How the client for records is set up, whether it is connected, and its errors as BusError.

Client facts that shape this file (librdkafka by confluent-kafka 2): it connects by itself, again
and again, in threads of its own, and tells only its statistics whether it is connected.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import contextmanager
from typing import Any

import msgspec
from confluent_kafka import KafkaException

from controllers.errors import BusError
from infra.settings_sections import KafkaSettings

STATISTICS_INTERVAL_MS = 1_000

# `KafkaSecurity`'s name -> the client's. The administrative client takes the names of the settings.
SECURITY_OPTIONS = {
    "security_protocol": "security.protocol",
    "ssl_check_hostname": "ssl.endpoint.identification.algorithm",
    "ssl_cafile": "ssl.ca.location",
    "ssl_certfile": "ssl.certificate.location",
    "ssl_keyfile": "ssl.key.location",
    "ssl_password": "ssl.key.password",
    "ssl_crlfile": "ssl.crl.location",
    "sasl_mechanism": "sasl.mechanism",
    "sasl_plain_username": "sasl.username",
    "sasl_plain_password": "sasl.password",
}


class _Broker(msgspec.Struct):
    state: str


class _Statistics(msgspec.Struct):
    brokers: dict[str, _Broker] = {}


_decoder = msgspec.json.Decoder(_Statistics)


class Connection:
    """Whether a client is connected, as it said last; it says so once a second.

    True at first: a client is made when the bus has just answered.
    """

    def __init__(self) -> None:
        self.is_up = True

    def on_statistics(self, json: str) -> None:
        """Given to the client, which calls it while it is polled."""
        brokers = _decoder.decode(json).brokers.values()
        self.is_up = any(broker.state == "UP" for broker in brokers)


def client_options(settings: KafkaSettings, connection: Connection | None = None) -> dict[str, Any]:
    """What all clients have in common; `connection` is kept up to date."""
    options: dict[str, Any] = {
        "bootstrap.servers": settings.bootstrap_servers,
        "client.id": "cachelane",
        "reconnect.backoff.max.ms": 1_000,
        "topic.metadata.refresh.interval.ms": 60_000,
        "allow.auto.create.topics": False,
        "log_level": 0,  # what goes wrong the producers and readers say, once
        **_security_options(settings),
    }
    if connection is not None:
        options["statistics.interval.ms"] = STATISTICS_INTERVAL_MS
        options["stats_cb"] = connection.on_statistics
    return options


@contextmanager
def bus_errors(what: str) -> Iterator[None]:
    """What the client raises becomes a BusError that begins with `what`."""
    try:
        yield
    except NoAnswer as error:
        raise BusError(f"{what}: no answer in time") from error
    except KafkaException as error:
        raise BusError(f"{what}: {error.args[0].str()}") from error
    except BufferError as error:
        raise BusError(f"{what}: {error}") from error


def _security_options(settings: KafkaSettings) -> dict[str, str | bool]:
    given: dict[str, str | bool] = msgspec.to_builtins(settings.security)
    options = {SECURITY_OPTIONS[name]: value for name, value in given.items()}
    name = SECURITY_OPTIONS["ssl_check_hostname"]
    if name in options:
        options[name] = "https" if options[name] else "none"
    return options
