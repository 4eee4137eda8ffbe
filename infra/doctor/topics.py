"""A Kafka cluster against what the settings want of it. Pure."""

from __future__ import annotations

from infra.bus_facts import BusFacts, TopicFacts
from infra.doctor.finding import Finding, Level
from infra.event_bus_base import Topics
from infra.settings_sections import KafkaSettings
from infra.topic_specs import topic_specs

MIN_VERSION = (2, 8)  # the first that tells topic ids, by which a topic created anew is noticed
MAX_CLOCK_SKEW_S = 1.0
MAX_CLOCK_AHEAD_S = 3600.0  # a broker's default for message.timestamp.after.max.ms
NTP_FIX = "Synchronise the clocks of this machine and of the brokers (NTP, chrony)."


def check_bus(facts: BusFacts, settings: KafkaSettings) -> list[Finding]:
    return [
        _version(facts),
        _replication(facts, settings),
        check_clock("kafka.clock", "the brokers' clock", facts.clock_ahead_s),
        *_missing(facts, settings),
        *(
            finding
            for topic, spec in topic_specs(settings).items()
            if topic in facts.topics
            for finding in _topic(topic, facts.topics[topic], spec, settings)
        ),
    ]


def _version(facts: BusFacts) -> Finding:
    text = f"Kafka {'.'.join(map(str, facts.version))}, {facts.num_brokers} brokers"
    if facts.version >= MIN_VERSION:
        return Finding("kafka.version", "ok", text)
    fix = "Use Kafka 2.8 or later: older ones do not tell when a topic was created anew."
    return Finding("kafka.version", "warning", text, fix)


def _replication(facts: BusFacts, settings: KafkaSettings) -> Finding:
    wanted, brokers = settings.replication_factor, facts.num_brokers
    text = f"kafka.replication_factor is {wanted}, with {brokers} brokers"
    if wanted > brokers:
        fix = f"Set kafka.replication_factor to {brokers}, or add brokers."
        return Finding("kafka.replication", "error", text, fix)
    if wanted < min(brokers, 3):
        fix = f"Set kafka.replication_factor to {min(brokers, 3)}, so that a broker may fail."
        return Finding("kafka.replication", "warning", text, fix)
    return Finding("kafka.replication", "ok", text)


def check_clock(id: str, whose: str, ahead_s: float | None) -> Finding:
    """`ahead_s`: that clock minus ours."""
    if ahead_s is None:
        return Finding(id, "info", f"{whose} cannot be seen")
    text = f"{whose} is {abs(ahead_s):.3f} s {'ahead of' if ahead_s > 0 else 'behind'} ours"
    if abs(ahead_s) <= MAX_CLOCK_SKEW_S:
        return Finding(id, "ok", text)
    # A broker refuses records from more than an hour ahead of it.
    level: Level = "error" if abs(ahead_s) >= MAX_CLOCK_AHEAD_S else "warning"
    return Finding(id, level, text, NTP_FIX)


def _missing(facts: BusFacts, settings: KafkaSettings) -> list[Finding]:
    topics = Topics(settings.topic_prefix).all()
    missing = [topic for topic in topics if topic not in facts.topics]
    if not missing:
        return [Finding("kafka.topics", "ok", f"all {len(topics)} topics are there")]
    names = ", ".join(missing)
    if facts.refusal:
        text = f"{names} missing, and creating them is refused: {facts.refusal}"
        fix = (
            f"Create them with {settings.num_partitions} partitions and cleanup.policy=delete, "
            "or give this user the right to."
        )
        return [Finding("kafka.topics", "error", text, fix)]
    return [Finding("kafka.topics", "info", f"{names} missing; the service creates them")]


def _topic(
    topic: str, facts: TopicFacts, spec: dict[str, object], settings: KafkaSettings
) -> list[Finding]:
    id = f"kafka.topic.{topic.rpartition('.')[2]}"
    faults = [
        *_partitions(id, topic, facts, settings),
        *_copies(id, topic, facts, settings),
        *_configs(id, topic, facts, spec),
    ]
    if faults:
        return faults
    return [Finding(id, "ok", f"{topic}: {facts.num_partitions} partitions, set up as wanted")]


def _partitions(id: str, topic: str, facts: TopicFacts, settings: KafkaSettings) -> list[Finding]:
    if facts.num_partitions == settings.num_partitions:
        return []
    text = f"{topic} has {facts.num_partitions} partitions, wanted {settings.num_partitions}"
    fix = f"Set kafka.num_partitions to {facts.num_partitions}, or choose another topic_prefix."
    return [Finding(f"{id}.partitions", "error", text, fix)]


def _copies(id: str, topic: str, facts: TopicFacts, settings: KafkaSettings) -> list[Finding]:
    found = []
    if facts.replication_factor < settings.replication_factor:
        text = (
            f"{topic} has {facts.replication_factor} copies of each record, "
            f"wanted {settings.replication_factor}"
        )
        fix = "Raise the topic's replication with `kafka-reassign-partitions.sh`."
        found.append(Finding(f"{id}.replication", "warning", text, fix))
    if facts.num_under_replicated:
        text = f"{topic}: {facts.num_under_replicated} partitions lack a copy now"
        fix = "Bring the missing broker back."
        found.append(Finding(f"{id}.in_sync", "warning", text, fix))
    return found


def _configs(id: str, topic: str, facts: TopicFacts, spec: dict[str, object]) -> list[Finding]:
    configs = facts.configs
    if configs is None:
        text = f"the settings of {topic} may not be read"
        fix = "Give this user the right DESCRIBE_CONFIGS, or look with an administrator's."
        return [Finding(f"{id}.configs", "info", text, fix)]
    wanted = spec["configs"]
    assert isinstance(wanted, dict)
    return [
        *_policy(id, topic, configs),
        *_retention(id, topic, configs, int(wanted["retention.ms"])),
        *_record_size(id, topic, configs, int(wanted["max.message.bytes"])),
        *_in_sync(id, topic, configs, facts),
    ]


def _policy(id: str, topic: str, configs: dict[str, str]) -> list[Finding]:
    policy = configs.get("cleanup.policy", "delete")
    if policy == "delete":
        return []
    text = f"{topic} has cleanup.policy={policy}: compaction tears holes into a worker's history"
    return [Finding(f"{id}.cleanup", "error", text, _alter(topic, "cleanup.policy", "delete"))]


def _retention(id: str, topic: str, configs: dict[str, str], wanted_ms: int) -> list[Finding]:
    kept_ms = int(configs.get("retention.ms", wanted_ms))
    if kept_ms == wanted_ms:
        return []
    is_short = 0 <= kept_ms < wanted_ms
    kept = "for ever" if kept_ms < 0 else f"for {kept_ms / 1000:g} s"
    text = f"{topic} keeps records {kept}, wanted {wanted_ms / 1000:g} s"
    fix = _alter(topic, "retention.ms", str(wanted_ms))
    return [Finding(f"{id}.retention", "warning" if is_short else "info", text, fix)]


def _record_size(id: str, topic: str, configs: dict[str, str], wanted: int) -> list[Finding]:
    allowed = int(configs.get("max.message.bytes", wanted))
    if allowed >= wanted:
        return []
    text = f"{topic} takes records of {allowed} bytes, kafka.max_record_bytes needs {wanted}"
    fix = _alter(topic, "max.message.bytes", str(wanted))
    return [Finding(f"{id}.record_size", "error", text, fix)]


def _in_sync(id: str, topic: str, configs: dict[str, str], facts: TopicFacts) -> list[Finding]:
    needed = int(configs.get("min.insync.replicas", "1"))
    if needed <= facts.replication_factor:
        return []
    text = f"{topic} wants {needed} copies in sync and has {facts.replication_factor} at all"
    fix = _alter(topic, "min.insync.replicas", str(facts.replication_factor))
    return [Finding(f"{id}.min_in_sync", "error", text, fix)]


def _alter(topic: str, key: str, value: str) -> str:
    return f"Run `kafka-configs.sh --alter --topic {topic} --add-config {key}={value}`."
