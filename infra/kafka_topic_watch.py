"""What the bus says of one topic beside its records: partitions, first offsets, which topic it is.

Asks once in LOOK_INTERVAL_S and, except at the start, waits for no answer.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from infra.kafka_options import bus_errors, client_options
from infra.settings_sections import KafkaSettings

ANSWER_TIMEOUT_S = 5.0
NO_TOPIC_ID = ("None", str(Uuid(0, 0)))
LOOK_INTERVAL_S = 10.0  # how soon a topic created again is noticed when it is idle


_FIRST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]


class TopicWatch:
    """Construction waits for the first answer; raises BusError if there is none.

    `partitions` is empty while the topic is missing; `topic_id` is None if the bus has no such
    thing.
    """

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self.partitions: tuple[int, ...] = ()
        self.topic_id: str | None = None
        self._topic = topic
        self._question: Future[Any] | None = None
        self._ask_at = time.monotonic() + LOOK_INTERVAL_S
        with bus_errors(f"Kafka does not tell of topic {topic!r}"):
            self._admin = AdminClient(client_options(settings))
            self._take(self._ask().result(ANSWER_TIMEOUT_S))

    def first_offsets(self) -> dict[int, int]:
        """Of every partition. Raises BusError."""
        places = {TopicPartition(self._topic, p): _FIRST for p in self.partitions}
        with bus_errors(f"Kafka does not tell of topic {self._topic!r}"):
            answers = self._admin.list_offsets(places, request_timeout=ANSWER_TIMEOUT_S)
            return {p.partition: a.result(ANSWER_TIMEOUT_S).offset for p, a in answers.items()}

    def look(self) -> None:
        """Take the answer if it has come, or ask if it is time."""
        question = self._question
        if question is None:
            if time.monotonic() >= self._ask_at:
                self._question = self._ask()
        elif question.done():
            self._question = None
            self._ask_at = time.monotonic() + LOOK_INTERVAL_S
            self._take_answer(question)

    def _ask(self) -> Future[Any]:
        topics = TopicCollection([self._topic])
        answers = self._admin.describe_topics(topics, request_timeout=ANSWER_TIMEOUT_S)
        return answers[self._topic]

    def _take_answer(self, question: Future[Any]) -> None:
        """None came while the bus is away: what was known stays."""
        try:
            self._take(question.result())
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                self.partitions = ()

    def _take(self, description: Any) -> None:
        self.partitions = tuple(sorted(p.id for p in description.partitions))
        topic_id = str(description.topic_id)
        self.topic_id = None if topic_id in NO_TOPIC_ID else topic_id
