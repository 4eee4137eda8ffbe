"""Reads the fleet's topics with a plain Kafka consumer; nothing of ours is between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

PREFIX = "cachelane"


class TopicReader:
    """All partitions of one topic; `records` grows with every `read`."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer
        self.records: list[Any] = []

    def read(self) -> list[Any]:
        """Everything up to the present end, in order of each partition; all records so far."""
        ends = self.ends()
        while any(self._consumer.position(partition) < end for partition, end in ends.items()):
            for batch in self._consumer.poll(timeout_ms=500).values():
                self.records.extend(json.loads(record.value) for record in batch)
        return self.records

    def ends(self) -> dict[TopicPartition, int]:
        """Partition -> offset that its next record will have."""
        return self._consumer.end_offsets(self._consumer.assignment())  # type: ignore[no-any-return]

    def events(self, worker: str) -> list[Any]:
        """Of the records read so far, in order."""
        return [
            e for record in self.records if record["worker"] == worker for e in record["events"]
        ]


@contextmanager
def topic_reader(bootstrap: str, topic: str, *, from_end: bool = False) -> Iterator[TopicReader]:
    """`topic` is named without its prefix."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    try:
        name = f"{PREFIX}.{topic}"
        partitions = [TopicPartition(name, p) for p in consumer.partitions_for_topic(name)]
        consumer.assign(partitions)
        (consumer.seek_to_end if from_end else consumer.seek_to_beginning)()
        for partition in partitions:
            consumer.position(partition)  # seeking is lazy
        yield TopicReader(consumer)
    finally:
        consumer.close()


def delete_records(bootstrap: str, topic: str) -> None:
    """What the topic holds now is gone; `topic` is named without its prefix."""
    with topic_reader(bootstrap, topic, from_end=True) as reader:
        ends = reader.ends()
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.delete_records(ends)
    finally:
        admin.close()


def seqs_by_epoch(records: list[Any]) -> list[list[int]]:
    """In order of the log."""
    epoch_to_seqs: dict[tuple[str, int], list[int]] = {}
    for record in records:
        epoch_to_seqs.setdefault((record["worker"], record["epoch"]), []).append(record["seq"])
    return list(epoch_to_seqs.values())


def resident_blocks(records: list[Any], block_size: int) -> dict[str, set[str]]:
    """Full blocks that each worker holds, by the laws in docs/kafka.md alone.

    Simple on purpose: it relies on a log without holes and without torn snapshots.
    """
    worker_to_parents: dict[str, dict[str, str]] = {}
    partial: set[str] = set()
    for record in sorted(records, key=lambda r: (r["worker"], r["epoch"], r["seq"])):
        parents = worker_to_parents.setdefault(record["worker"], {})
        for event in record["events"]:
            _apply(event, parents, partial, block_size)
    return {worker: parents.keys() - partial for worker, parents in worker_to_parents.items()}


def _apply(event: Any, parents: dict[str, str], partial: set[str], block_size: int) -> None:
    if event["type"] in ("worker_up", "worker_down", "cleared"):
        parents.clear()
    elif event["type"] == "stored":
        parents.update(zip(event["hashes"], [event["parent"], *event["hashes"]], strict=False))
        _note_partial(event, partial, block_size)
    elif event["type"] == "removed":
        for block in event["hashes"]:
            _drop(block, parents)
    elif event["type"] == "snapshot":
        if event["part"] == 0:
            parents.clear()
        parents.update(zip(event["blocks"]["hashes"], event["blocks"]["parents"], strict=True))
        _note_partial(event["blocks"], partial, block_size)


def _note_partial(blocks: Any, partial: set[str], block_size: int) -> None:
    sizes = zip(blocks["hashes"], blocks["num_tokens"], strict=True)
    partial.update(block for block, num_tokens in sizes if num_tokens < block_size)


def _drop(block: str, parents: dict[str, str]) -> None:
    if parents.pop(block, None) is not None:
        for child in [child for child, parent in parents.items() if parent == block]:
            _drop(child, parents)
