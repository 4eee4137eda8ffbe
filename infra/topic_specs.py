"""What the topics are created with. Knows no client library; `infra.kafka_admin` creates them."""

from __future__ import annotations

from typing import Any

from infra.event_bus_base import Topics
from infra.settings_sections import KafkaSettings

BROKER_MAX_BATCH_BYTES = 1_048_588  # the broker's default for message.max.bytes
BATCH_OVERHEAD_BYTES = 65_536


def topic_specs(settings: KafkaSettings) -> dict[str, dict[str, Any]]:
    """What each topic is created with, in the form the client's `create_topics` takes."""
    topics = Topics(settings.topic_prefix)
    topic_to_retention_s = {
        topics.kv_events: settings.events_retention_s,
        topics.decisions: settings.decisions_retention_s,
        topics.scaling: settings.decisions_retention_s,
        topics.bookings: settings.bookings_retention_s,
        topics.uses: settings.uses_retention_s,
    }
    return {
        topic: {
            "num_partitions": settings.num_partitions,
            "replication_factor": settings.replication_factor,
            "configs": _topic_configs(retention_s, settings.max_record_bytes),
        }
        for topic, retention_s in topic_to_retention_s.items()
    }


def _topic_configs(retention_s: float, max_record_bytes: int) -> dict[str, str]:
    retention_ms = int(retention_s * 1000)
    # Only closed segments are deleted: roll often enough for the retention to be kept.
    segment_ms = min(600_000, max(60_000, retention_ms // 6))
    max_batch_bytes = max(BROKER_MAX_BATCH_BYTES, max_record_bytes + BATCH_OVERHEAD_BYTES)
    return {
        "cleanup.policy": "delete",
        "retention.ms": str(retention_ms),
        "segment.ms": str(segment_ms),
        "max.message.bytes": str(max_batch_bytes),
    }
