"""The frame of a benchmark of several processes that talk over a Kafka of their own.

A process is started with the settings of that Kafka, its number, `arguments`, and its end of a
pipe: it receives how many seconds to measure, sends what it found, and receives the order to end.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from bench.arguments import new_file, positive_number
from bench.broker import running_broker
from bench.report import write_json
from infra.event_bus import KafkaBus
from infra.settings_sections import KafkaSettings

JOIN_S = 30.0


def found_together(
    process: Callable[..., None], num_processes: int, seconds: float, arguments: Sequence[Any]
) -> list[Any]:
    """What each process found."""
    with running_broker() as (_, broker):
        kafka = KafkaSettings(bootstrap_servers=broker.bootstrap)
        KafkaBus(kafka).ensure_topics()
        return _run(process, num_processes, seconds, [kafka, *arguments])


def _run(
    process: Callable[..., None], num_processes: int, seconds: float, arguments: Sequence[Any]
) -> list[Any]:
    context = multiprocessing.get_context("spawn")
    ends: list[Connection] = []
    processes = []
    for number in range(num_processes):
        ours, theirs = context.Pipe()
        started = context.Process(target=process, args=(theirs, number, *arguments))
        started.start()
        ends.append(ours)
        processes.append(started)
    try:
        for end in ends:
            end.send(seconds)
        found = [end.recv() for end in ends]
        for end in ends:
            end.send("end")
        for started in processes:
            started.join(JOIN_S)
    finally:
        for started in processes:
            started.terminate()  # if they have not ended
    return found


def cpu_per_request(run: Callable[[], int]) -> float:
    """Microseconds of this process, all its threads, for each of the requests that `run` says it
    made."""
    gc.collect()
    started = time.process_time()
    num_requests = run()
    return (time.process_time() - started) / num_requests * 1e6


def of_ages(name: str, ages_ms: Iterable[Iterable[float]]) -> dict[str, float]:
    """Median and p99 over all processes."""
    every = sorted(age for of_process in ages_ms for age in of_process)
    return {
        f"{name}_p50_ms": round(median(every), 1),
        f"{name}_p99_ms": round(every[int(len(every) * 0.99)], 1),
    }


def of_cpu(alone: Sequence[float], told: Sequence[float], of_what: str) -> dict[str, float]:
    """What telling costs, and what the same process takes for the requests alone."""
    return {
        f"cpu_us_per_{of_what}": round(median(told) - median(alone)),
        "cpu_us_without": round(median(alone)),
    }


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """With the options that all have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=positive_number, default=8.0)
    parser.add_argument("--json", type=new_file)
    return parser


def show(name: str, figures: dict[str, Any], path: Path | None) -> None:
    """Write them and print them."""
    write_json(name, figures, path)
    for figure, value in figures.items():
        print(f"{figure:24} {value}")
