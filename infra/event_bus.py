"""The log on Kafka: makes producers and readers of it.

What to do about a broken connection is decided in `infra.event_producer` and `infra.event_reader`;
the connections are `infra.kafka_sender` and `infra.kafka_fetcher`, and what must be there before,
`infra.kafka_admin`.
"""

from __future__ import annotations

from controllers.errors import BusError
from infra.event_bus_base import OnDelivery, OnLoss, Topics
from infra.event_producer import EventProducer, ProducerLimits
from infra.event_reader import EventReader
from infra.kafka_address import parse_addresses
from infra.kafka_admin import ensure_topics
from infra.kafka_fetcher import KafkaFetcher
from infra.kafka_sender import KafkaSender
from infra.settings_sections import KafkaSettings


class KafkaBus:
    """See `infra.event_bus_base.Bus`. Cheap to build: connects to nothing."""

    def __init__(self, settings: KafkaSettings, limits: ProducerLimits | None = None) -> None:
        parse_addresses(settings.bootstrap_servers or "")
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
