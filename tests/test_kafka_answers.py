"""Whether a Kafka answers: dead, hung, and well."""

from __future__ import annotations

import socket

from infra.kafka_answers import kafka_problem
from infra.settings_sections import KafkaSettings
from tests.kafka_fixtures import TestBroker


def problem_of(address: str) -> str:
    return kafka_problem(KafkaSettings(bootstrap_servers=address), timeout_s=0.3)


def test_nothing_listens() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        assert problem_of(address).startswith(f"no Kafka at {address}: ")


def test_a_broker_that_hangs_still_takes_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert problem_of(address).startswith(f"Kafka at {address}: ")


def test_a_broker_that_answers(kafka_session: TestBroker) -> None:
    assert kafka_problem(KafkaSettings(bootstrap_servers=kafka_session.bootstrap), 10.0) == ""
