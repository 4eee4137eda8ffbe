"""What the workers of a running fleet say in their records, compared with one another. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controllers.errors import EventError
from controllers.events import BatchHeader
from controllers.record_codec import decode_batch
from infra.doctor.finding import Finding, listed
from infra.doctor.topics import check_clock
from infra.event_bus_base import Record


@dataclass(frozen=True, slots=True)
class Heard:
    """A record, and when it came by our own clock (Unix, s)."""

    record: Record
    at_s: float


@dataclass(frozen=True, slots=True)
class Worker:
    """`ahead_s`: its clock minus ours, at least: a record is always a little old."""

    header: BatchHeader
    ahead_s: float


def workers_of(heard: Iterable[Heard]) -> dict[str, Worker]:
    """The newest header of each worker, and the most that its clock was ahead."""
    workers: dict[str, Worker] = {}
    for one in heard:
        try:
            header = decode_batch(one.record.value).batch
        except EventError:
            continue  # the feed counts these, and /fleet shows them
        ahead_s = header.ts_ms / 1e3 - one.at_s
        before = workers.get(header.worker)
        most_s = ahead_s if before is None else max(ahead_s, before.ahead_s)
        workers[header.worker] = Worker(header, most_s)
    return workers


def check_workers(workers: Mapping[str, Worker], block_size: int) -> list[Finding]:
    """`block_size` of the settings. Only workers heard of just now are told about."""
    if not workers:
        fix = "Look into the replicas' logs, and whether they reach this Kafka."
        text = "no worker published anything while this looked"
        return [Finding("fleet.workers", "warning", text, fix)]
    return [
        Finding("fleet.workers", "ok", f"{len(workers)} workers publish"),
        _block_size(workers, block_size),
        _model(workers),
        _clocks(workers),
    ]


def _block_size(workers: Mapping[str, Worker], wanted: int) -> Finding:
    by_size: dict[int, list[str]] = {}
    for name, worker in workers.items():
        by_size.setdefault(worker.header.block_size, []).append(name)
    if by_size.keys() == {wanted}:
        return Finding("fleet.block_size", "ok", f"every worker has {wanted} tokens a block")
    said = "; ".join(f"{size}: {listed(names)}" for size, names in sorted(by_size.items()))
    text = f"tokens a block, {wanted} in the settings: {said}"
    fix = "Give every replica the same executor.block_size; prefixes of another never match."
    return Finding("fleet.block_size", "error", text, fix)


def _model(workers: Mapping[str, Worker]) -> Finding:
    models = {worker.header.model for worker in workers.values()}
    if len(models) == 1:
        return Finding("fleet.model", "ok", f"every worker serves {listed(models)}")
    fix = "Give each model its own kafka.topic_prefix."
    return Finding("fleet.model", "error", f"workers serve {listed(models)}", fix)


def _clocks(workers: Mapping[str, Worker]) -> Finding:
    name, worst = max(workers.items(), key=lambda item: abs(item[1].ahead_s))
    return check_clock("fleet.clocks", f"the clock of {name}", worst.ahead_s)
