"""One connection that sends, see `infra.event_producer.Sender`.

Client facts that shape this file (librdkafka by confluent-kafka 2): it tells what came of a record
while it is polled, so a thread polls it; it repeats what can be repeated, gives up each record at
its own time, and goes on with the others unless the error is fatal.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from infra.event_bus_base import Topics
from infra.event_producer import Done
from infra.kafka_admin import REQUEST_TIMEOUT_MS, ensure_topics
from infra.kafka_options import Connection, bus_errors, client_options
from infra.settings_sections import KafkaSettings
from infra.topic_specs import BATCH_OVERHEAD_BYTES

logger = logging.getLogger(__name__)

POLL_S = 0.5
CONNECT_TIMEOUT_S = 5.0
CLOSE_S = 1.0


class KafkaSender:
    """Construction blocks for seconds if the bus is slow, and raises BusError if it is away."""

    def __init__(self, settings: KafkaSettings, delivery_timeout_s: float) -> None:
        ensure_topics(settings)
        self._has_failed = False
        self._is_closing = False
        self._connection = Connection()
        with bus_errors(f"Kafka at {settings.bootstrap_servers}"):
            self._producer = Producer(self._options(settings, int(delivery_timeout_s * 1000)))
            # Otherwise the first record would connect it, and wait half a second for its number.
            self._producer.list_topics(Topics(settings.topic_prefix).kv_events, CONNECT_TIMEOUT_S)
        self._thread = threading.Thread(target=self._run, name="kafka-sender", daemon=True)
        self._thread.start()

    def send(self, topic: str, key: bytes, value: bytes, done: Done) -> None:
        def settle(error: KafkaError | None, message: Message) -> None:
            self._settle(error, message, done)

        with bus_errors(f"cannot send to {topic}"):
            self._producer.produce(topic, value, key, on_delivery=settle)

    def is_usable(self) -> bool:
        return not self._has_failed

    def is_connected(self) -> bool:
        return self._connection.is_up

    def close(self) -> None:
        self._is_closing = True
        self._producer.purge()
        self._producer.flush(CLOSE_S)
        self._thread.join(CLOSE_S)

    def _options(self, settings: KafkaSettings, delivery_timeout_ms: int) -> dict[str, Any]:
        return {
            **client_options(settings, self._connection),
            "acks": "all",
            "enable.idempotence": True,
            "partitioner": "murmur2_random",  # as other clients: a key stays in its partition
            "linger.ms": 1,
            "batch.size": 131_072,
            "compression.type": "lz4",
            "message.timeout.ms": delivery_timeout_ms,
            "request.timeout.ms": min(REQUEST_TIMEOUT_MS, delivery_timeout_ms - 1),
            "retry.backoff.ms": 50,
            # Our own bound counts key and value; the client also counts its framing.
            "message.max.bytes": settings.max_record_bytes + BATCH_OVERHEAD_BYTES,
        }

    def _run(self) -> None:
        while not self._is_closing:
            try:
                self._producer.poll(POLL_S)
            except Exception:
                logger.exception("a record's end was not taken")

    def _settle(self, error: KafkaError | None, message: Message, done: Done) -> None:
        if self._is_closing:
            return  # whoever closes knows what is left
        if error is None:
            done("", message.partition() or 0, message.offset() or 0)
            return
        self._has_failed |= error.fatal()
        done(error.str(), -1, -1)
