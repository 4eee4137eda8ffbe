"""Whether a fleet's Kafka answers: one connection and its first metadata, with its security."""

from __future__ import annotations

from controllers.errors import BusError
from infra.kafka_admin import open_admin
from infra.settings_sections import KafkaSettings

TIMEOUT_S = 1.5  # TLS and a login take several turns


def kafka_problem(settings: KafkaSettings, timeout_s: float = TIMEOUT_S) -> str:
    """Why it does not answer; "" if it does."""
    timeout_ms = int(timeout_s * 1000)
    try:
        admin, _ = open_admin(
            settings, bootstrap_timeout_ms=timeout_ms, request_timeout_ms=timeout_ms
        )
    except BusError as error:
        return str(error)
    admin.close()
    return ""
