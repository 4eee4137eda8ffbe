"""A Kafka cluster and its topics against the settings."""

from __future__ import annotations

import dataclasses

import pytest

from infra.bus_facts import BusFacts, TopicFacts
from infra.doctor import observe
from infra.doctor.finding import Finding
from infra.doctor.observe import hear_workers, look_at_bus
from infra.doctor.topics import check_bus, check_clock
from infra.event_bus import KafkaBus
from infra.event_bus_memory import MemoryBus
from infra.kafka_admin import ensure_topics
from infra.settings_sections import KafkaSettings
from infra.topic_specs import topic_specs
from tests.kafka_fixtures import TestBroker, fresh_settings

SETTINGS = KafkaSettings(replication_factor=1)
EVENTS = "cachelane.kv-events"


def facts_of(settings: KafkaSettings) -> BusFacts:
    """One broker on which everything is as `settings` want it."""
    topics = {
        topic: TopicFacts(settings.num_partitions, 1, 0, dict(spec["configs"]))
        for topic, spec in topic_specs(settings).items()
    }
    return BusFacts(1, (4, 3), 0.01, "", topics)


def with_topic(**changes: object) -> BusFacts:
    """The facts with kv-events changed."""
    facts = facts_of(SETTINGS)
    topic = dataclasses.replace(facts.topics[EVENTS], **changes)  # type: ignore[arg-type]
    return dataclasses.replace(facts, topics={**facts.topics, EVENTS: topic})


def bad(facts: BusFacts, settings: KafkaSettings = SETTINGS) -> list[Finding]:
    return [finding for finding in check_bus(facts, settings) if finding.level != "ok"]


def with_config(key: str, value: str) -> BusFacts:
    configs = facts_of(SETTINGS).topics[EVENTS].configs
    assert configs is not None
    return with_topic(configs={**configs, key: value})


def test_all_is_well() -> None:
    assert bad(facts_of(SETTINGS)) == []
    assert len(check_bus(facts_of(SETTINGS), SETTINGS)) == 9


@pytest.mark.parametrize(
    ("key", "value", "id", "level"),
    [
        ("cleanup.policy", "compact", "cleanup", "error"),
        ("cleanup.policy", "compact,delete", "cleanup", "error"),
        ("retention.ms", "3600000", "retention", "warning"),
        ("retention.ms", "-1", "retention", "info"),
        ("max.message.bytes", "1000000", "record_size", "error"),
        ("min.insync.replicas", "2", "min_in_sync", "error"),
    ],
)
def test_a_topic_set_up_otherwise(key: str, value: str, id: str, level: str) -> None:
    (found,) = bad(with_config(key, value))
    assert (found.id, found.level) == (f"kafka.topic.kv-events.{id}", level)
    assert f"--alter --topic {EVENTS} --add-config {key}=" in found.fix


@pytest.mark.parametrize(
    ("changes", "id", "level"),
    [
        ({"num_partitions": 3}, "partitions", "error"),
        ({"num_under_replicated": 2}, "in_sync", "warning"),
        ({"configs": None}, "configs", "info"),
    ],
)
def test_a_topic_of_another_shape(changes: dict[str, object], id: str, level: str) -> None:
    (found,) = bad(with_topic(**changes))
    assert (found.id, found.level) == (f"kafka.topic.kv-events.{id}", level)


def test_copies() -> None:
    three = dataclasses.replace(facts_of(SETTINGS), num_brokers=3)
    assert [(f.id, f.level) for f in bad(three)] == [("kafka.replication", "warning")]
    wants = KafkaSettings(replication_factor=3)
    found = {f.id: f.level for f in bad(three, wants)}
    assert set(found.values()) == {"warning"}
    assert set(found) == {f"kafka.topic.{t.rpartition('.')[2]}.replication" for t in three.topics}
    assert [f.level for f in bad(facts_of(SETTINGS), wants) if f.id == "kafka.replication"] == [
        "error"
    ]


def test_missing_topics() -> None:
    nothing = dataclasses.replace(facts_of(SETTINGS), topics={})
    (found,) = bad(nothing)
    assert (found.id, found.level, found.fix) == ("kafka.topics", "info", "")
    refused = dataclasses.replace(nothing, refusal="Cluster authorization failed")
    (found,) = bad(refused)
    assert (found.id, found.level) == ("kafka.topics", "error")
    assert "Cluster authorization failed" in found.found
    assert "12 partitions" in found.fix


def test_an_old_broker() -> None:
    old = dataclasses.replace(facts_of(SETTINGS), version=(2, 3))
    assert [(f.id, f.level) for f in bad(old)] == [("kafka.version", "warning")]


@pytest.mark.parametrize(
    ("ahead_s", "level", "text"),
    [
        (None, "info", "x cannot be seen"),
        (0.5, "ok", "x is 0.500 s ahead of ours"),
        (-2.0, "warning", "x is 2.000 s behind ours"),
        (-3600.0, "error", "x is 3600.000 s behind ours"),
    ],
)
def test_clocks(ahead_s: float | None, level: str, text: str) -> None:
    found = check_clock("kafka.clock", "x", ahead_s)
    assert (found.level, found.found) == (level, text)


def test_looking_at_a_broker_changes_nothing(kafka_broker: TestBroker) -> None:
    settings = fresh_settings(kafka_broker.bootstrap)
    before = look_at_bus(settings)
    assert (before.num_brokers, before.version[0], before.refusal) == (1, 4, "")
    assert before.topics == {}
    assert before.clock_ahead_s is not None
    assert abs(before.clock_ahead_s) < 5.0
    assert look_at_bus(settings).topics == {}
    assert [f.id for f in check_bus(before, settings) if f.level != "ok"] == ["kafka.topics"]


def test_topics_as_they_were_created_pass(kafka_broker: TestBroker) -> None:
    settings = fresh_settings(kafka_broker.bootstrap)
    ensure_topics(settings)
    assert [f for f in check_bus(look_at_bus(settings), settings) if f.level != "ok"] == []


def test_more_copies_than_brokers_are_refused(kafka_broker: TestBroker) -> None:
    wants = fresh_settings(kafka_broker.bootstrap)
    wants = KafkaSettings(
        **{**{n: getattr(wants, n) for n in wants.__struct_fields__}, "replication_factor": 3}
    )
    facts = look_at_bus(wants)
    assert "replication factor of 3" in facts.refusal
    assert {f.id: f.level for f in check_bus(facts, wants)}["kafka.topics"] == "error"


def test_a_log_that_is_not_read_to_its_end_in_time_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was there before would pass for workers that publish."""
    monkeypatch.setattr(observe, "CATCH_UP_S", 0.0)
    bus = MemoryBus()
    producer = bus.producer()
    reader = bus.reader(bus.topics.kv_events)
    producer.publish(bus.topics.kv_events, b"w", b"before")
    assert not reader.is_caught_up()
    assert observe._listen(reader, 0.05) == []


def test_only_what_comes_while_one_listens_is_heard(kafka_broker: TestBroker) -> None:
    settings = fresh_settings(kafka_broker.bootstrap)
    bus = KafkaBus(settings)
    ensure_topics(settings)
    producer = bus.producer()
    try:
        producer.publish(bus.topics.kv_events, b"w", b"before")
        assert producer.flush(10.0)
        assert hear_workers(settings, 0.2) == []
    finally:
        producer.close()
