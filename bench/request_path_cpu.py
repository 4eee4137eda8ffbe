"""CPU time that servers take, by what their processes are. Knows nothing of what they serve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import psutil

from bench.fleet import Fleet
from infra.local_broker import LocalBroker

Parts: TypeAlias = Mapping[str, Sequence[psutil.Process]]


def cpu_ms(parts: Parts) -> dict[str, float]:
    """Of each part since its processes were started, in steps of 10 ms; those that have ended (an
    HAProxy after its last stream) count nothing."""
    return {name: sum(map(_process_ms, processes)) for name, processes in parts.items()}


def parts_of(fleet: Fleet) -> Parts:
    """Of our application; Ray's own processes are in none."""
    replicas = fleet.replicas()
    broker = LocalBroker.attach(fleet.state_dir)
    assert broker is not None, "the fleet has started it"
    return {
        "ingress": [r.process for r in replicas if r.deployment == "Ingress"],
        "replicas": [r.process for r in replicas if r.deployment == "Executor"],
        "Kafka": [psutil.Process(broker.pid)],
        "HAProxy": _named(fleet, "haproxy"),
    }


def parts_of_others(fleet: Fleet) -> Parts:
    """Of the other applications in the fleet's cluster."""
    ours = {replica.process.pid for replica in fleet.replicas()}
    replicas = _named(fleet, "ray::ServeRepl")
    return {
        "replicas": [process for process in replicas if process.pid not in ours],
        "HAProxy": _named(fleet, "haproxy"),
    }


def with_children(pids: Iterable[int]) -> list[psutil.Process]:
    found = [psutil.Process(pid) for pid in pids]
    return [*found, *(child for process in found for child in process.children(recursive=True))]


def _named(fleet: Fleet, start: str) -> list[psutil.Process]:
    return [process for process in fleet.processes() if process.name().startswith(start)]


def _process_ms(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system) * 1e3
