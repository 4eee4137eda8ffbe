"""One connection that reads one topic, see `infra.event_reader.Fetcher`.

Client facts that shape this file (librdkafka by confluent-kafka 2): it must be given a group's
name, but joins no group while it is assigned its partitions, and commits nothing; a partition can
be sought only once it is being read, so all are assigned anew; `consume` waits for as many records
as it was asked for; a call from a second thread waits for the poll of the first, and for the next
one too; of a topic that is created again it says nothing.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from controllers.errors import BusError
from infra.event_bus_base import Record
from infra.kafka_admin import ensure_topics
from infra.kafka_options import Connection, bus_errors, client_options
from infra.kafka_topic_watch import TopicWatch
from infra.settings_sections import KafkaSettings

GROUP = "cachelane-reader"
MAX_POLL_RECORDS = 2_000
REFUSALS = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._FATAL)


class KafkaFetcher:
    """Construction blocks for seconds if the bus is slow, and raises BusError if it is away."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        ensure_topics(settings)
        self._topic = topic
        self._watch = TopicWatch(settings, topic)
        self._next_offsets = self._watch.first_offsets()
        self._places = {
            partition: TopicPartition(topic, partition) for partition in self._next_offsets
        }
        self._must_assign = True
        self._connection = Connection()
        with bus_errors(f"Kafka at {settings.bootstrap_servers}"):
            self._consumer = Consumer(self._options(settings))

    def partitions(self) -> tuple[int, ...]:
        return self._watch.partitions

    def topic_id(self) -> str | None:
        return self._watch.topic_id

    def poll(self, timeout_s: float) -> list[Record]:
        if self._must_assign:
            self._assign()
        with bus_errors(f"cannot read {self._topic}"):
            message = self._consumer.poll(timeout_s)
            rest = [] if message is None else self._consumer.consume(MAX_POLL_RECORDS - 1, 0)
        self._watch.look()
        return [] if message is None else self._records([message, *rest])

    def position(self, partition: int) -> int | None:
        return self._next_offsets.get(partition)

    def end(self, partition: int) -> int | None:
        _, end = self._consumer.get_watermark_offsets(self._places[partition], cached=True)
        return end if end >= 0 else None

    def seek(self, partition: int, offset: int) -> None:
        self._next_offsets[partition] = offset
        self._must_assign = True

    def is_connected(self) -> bool:
        return self._connection.is_up

    def close(self) -> None:
        self._consumer.close()

    def _options(self, settings: KafkaSettings) -> dict[str, Any]:
        return {
            **client_options(settings, self._connection),
            "group.id": GROUP,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 500,
            "fetch.min.bytes": 1,
            "max.partition.fetch.bytes": max(1_048_576, settings.max_record_bytes * 2),
            "queued.max.messages.kbytes": 16_384,
        }

    def _assign(self) -> None:
        self._must_assign = False
        self._consumer.assign(
            [TopicPartition(self._topic, *place) for place in self._next_offsets.items()]
        )

    def _records(self, messages: list[Message]) -> list[Record]:
        records = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(_record(message))
            elif error.code() in REFUSALS:
                raise BusError(f"cannot read {self._topic}: {error.str()}")
        for record in records:
            self._next_offsets[record.partition] = record.offset + 1
        return records


def _record(message: Any) -> Record:
    return Record(
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key() or b"",
        message.value() or b"",
    )
