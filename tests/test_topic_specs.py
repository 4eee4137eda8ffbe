"""What topics are created with."""

from __future__ import annotations

import pytest

from infra.settings_sections import KafkaSettings
from infra.topic_specs import topic_specs

SETTINGS = KafkaSettings(
    topic_prefix="p",
    num_partitions=5,
    replication_factor=3,
    events_retention_s=7200.0,
    decisions_retention_s=90.0,
    bookings_retention_s=600.0,
    uses_retention_s=1800.0,
    max_record_bytes=2_000_000,
)


def test_whole_spec():
    assert topic_specs(SETTINGS)["p.kv-events"] == {
        "num_partitions": 5,
        "replication_factor": 3,
        "configs": {
            "cleanup.policy": "delete",
            "retention.ms": "7200000",
            "segment.ms": "600000",
            "max.message.bytes": "2065536",
        },
    }


@pytest.mark.parametrize(
    ("topic", "retention_ms", "segment_ms"),
    [
        ("p.kv-events", "7200000", "600000"),
        ("p.decisions", "90000", "60000"),
        ("p.scaling", "90000", "60000"),
        ("p.bookings", "600000", "100000"),
        ("p.uses", "1800000", "300000"),
    ],
)
def test_retention(topic, retention_ms, segment_ms):
    configs = topic_specs(SETTINGS)[topic]["configs"]
    assert (configs["retention.ms"], configs["segment.ms"]) == (retention_ms, segment_ms)


def test_small_records_keep_the_brokers_batch_limit():
    settings = KafkaSettings(max_record_bytes=10_000)
    configs = topic_specs(settings)["cachelane.kv-events"]["configs"]
    assert configs["max.message.bytes"] == "1048588"
