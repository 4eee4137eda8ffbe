"""What was seen of a Kafka cluster and of the topics of this product. Knows no client."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """`configs` None: this client may not read them."""

    num_partitions: int
    replication_factor: int
    num_under_replicated: int
    configs: dict[str, str] | None


@dataclass(frozen=True, slots=True)
class BusFacts:
    """`clock_ahead_s`: the brokers' clock minus ours, None where it cannot be seen;
    `refusal`: why missing topics could not be created, "" if they could."""

    num_brokers: int
    version: tuple[int, ...]
    clock_ahead_s: float | None
    refusal: str
    topics: dict[str, TopicFacts] = field(default_factory=dict)
