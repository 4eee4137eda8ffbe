"""`cachelane events`: the log, from its beginning, for people and for programs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from controllers.errors import BusError, EventError
from controllers.events import Event, Load, Snapshot, Stored, WorkerUp
from controllers.record_codec import decode_batch, decode_bookings
from controllers.records import Booking, Decision
from infra.event_bus import KafkaBus
from infra.event_bus_base import Reader, Record, ResetRequired
from infra.run_state import StateDir
from infra.settings import load_settings
from infra.settings_sections import KafkaSettings
from serve_app.cli_common import DEFAULT_STATE_DIR, StateDirOption, running

POLL_S = 0.2
CONNECT_TIMEOUT_S = 15.0
MAX_SHOWN_HASHES = 3
MAX_SHOWN_CHARACTERS = 64


class Topic(str, Enum):
    KV_EVENTS = "kv-events"
    DECISIONS = "decisions"
    SCALING = "scaling"
    BOOKINGS = "bookings"
    USES = "uses"


def events(
    topic: Annotated[Topic, typer.Option(help="Which part of the log.")] = Topic.KV_EVENTS,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more at the end.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Records as they are, one a line.")
    ] = False,
    max_records: Annotated[int | None, typer.Option("--max", min=1, help="End after N.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0, help="End after S seconds.")] = None,
    kafka: Annotated[str | None, typer.Option(help="host:port of another Kafka.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file with a kafka section.")] = None,
    state_dir: StateDirOption = DEFAULT_STATE_DIR,
) -> None:
    """Print the log from its oldest record on."""
    settings = bus_settings(kafka, config, state_dir)
    reader = KafkaBus(settings).reader(f"{settings.topic_prefix}.{topic.value}")
    try:
        records = read(reader, follow, max_records, timeout)
        for record in records:
            for line in [json_line(record.value)] if as_json else lines_of(topic, record.value):
                typer.echo(line)
    finally:
        reader.close()


def bus_settings(kafka: str | None, config: Path | None, state_dir: Path) -> KafkaSettings:
    """Of what runs for the state folder, unless another bus is named. Raises SetupError."""
    if kafka is None and config is None:
        running(state_dir)
        return load_settings(StateDir.at(state_dir).settings_file, env={}).kafka
    settings = load_settings(config).kafka
    return settings if kafka is None else msgspec.structs.replace(settings, bootstrap_servers=kafka)


def read(
    reader: Reader, follow: bool, max_records: int | None = None, timeout_s: float | None = None
) -> Iterator[Record]:
    """Records until the end of the log, `max_records` or `timeout_s`, whichever comes first.

    Raises BusError if the bus cannot be reached.
    """
    started_s = time.monotonic()
    count = 0
    while timeout_s is None or time.monotonic() - started_s < timeout_s:
        for record in _poll(reader, timeout_s):
            yield record
            count += 1
            if count == max_records:
                return
        if reader.is_caught_up() and not follow:
            return
        if not reader.is_connected() and time.monotonic() - started_s > CONNECT_TIMEOUT_S:
            raise BusError(f"cannot read the log: {reader.last_error() or 'no answer'}")


def _poll(reader: Reader, timeout_s: float | None) -> list[Record]:
    """What is there, in the order of time; a log that was created again is read from its start."""
    try:
        records = reader.poll(POLL_S if timeout_s is None else min(POLL_S, timeout_s))
    except ResetRequired:
        return []
    return sorted(records, key=lambda record: record.timestamp_ms)


def json_line(value: bytes) -> str:
    """A record as it is, in one line; a damaged one as an object that says so."""
    try:
        msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        damaged = {"damaged_record": str(error), "num_bytes": len(value)}
        return msgspec.json.encode(damaged).decode()
    return value.decode().replace("\n", " ")  # outside of strings, where JSON has only blanks


def lines_of(topic: Topic, value: bytes) -> list[str]:
    """One record for a reader of text; a damaged record says so."""
    try:
        if topic is Topic.KV_EVENTS:
            return _batch_lines(value)
        if topic is Topic.DECISIONS:
            return [_decision_line(msgspec.json.decode(value, type=Decision))]
        if topic is Topic.BOOKINGS:
            return _booking_lines(value)
        return [_flat_line(msgspec.json.decode(value))]
    except (EventError, msgspec.DecodeError) as error:
        return [f"damaged record: {error}"]


def _batch_lines(value: bytes) -> list[str]:
    batch, num_unknown = decode_batch(value)
    head = f"{_clock(batch.ts_ms)}  {batch.worker}  {batch.epoch}/{batch.seq}"
    lines = [f"{head}  {describe(event)}" for event in batch.events]
    return [*lines, f"{head}  {num_unknown} events of unknown types"] if num_unknown else lines


def describe(event: Event) -> str:
    """An event in one line: its type and what matters of it."""
    name = str(event.__struct_config__.tag)
    if isinstance(event, Stored):
        tokens = sum(event.num_tokens)
        return (
            f"{name}  {_hashes(event.hashes)} ({tokens} tokens) after {event.parent or 'the root'}"
            f"  {event.medium}  priority {_values(event.retention_priority)}"
            f"  tier {event.tier}  tenant {event.tenant}"
        )
    if isinstance(event, Snapshot):
        return (
            f"{name}  part {event.part + 1} of {event.num_parts}: {len(event.blocks.hashes)} blocks"
        )
    if isinstance(event, Load):
        return (
            f"{name}  active {event.num_active}  queued {event.num_queued}"
            f"  used {_pairs(event.used_blocks)}  cached {_pairs(event.cached_blocks)}"
        )
    if isinstance(event, WorkerUp):
        return f"{name}  {event.executor} {event.version}  blocks {_pairs(event.num_blocks)}"
    return f"{name}  {_fields(msgspec.to_builtins(event))}".rstrip()


def _fields(values: dict[str, Any]) -> str:
    shown = {name: value for name, value in values.items() if name != "type" and value is not None}
    return "  ".join(f"{name} {_shown(value)}" for name, value in shown.items())


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return _hashes(value)
    if isinstance(value, str) and len(value) > MAX_SHOWN_CHARACTERS:
        return f"{value[:16]}... ({len(value)} characters)"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _decision_line(decision: Decision) -> str:
    """The request, where it went and why, and what came of it."""
    ttft = "no token" if decision.ttft_ms is None else f"first token {decision.ttft_ms:.0f} ms"
    return (
        f"{_clock(decision.ts_ms)}  {decision.request_id}  {decision.request_type}"
        f"  {decision.worker}  {decision.reason}"
        f"  cached {decision.cached_tokens} of {decision.prompt_tokens} tokens"
        f" (predicted {decision.predicted_cached_tokens}, best {decision.best_cached_tokens})"
        f"  {ttft}  {decision.output_tokens} tokens in {decision.total_ms:.0f} ms"
        f"  {decision.status}"
    )


def _booking_lines(value: bytes) -> list[str]:
    """A line for each booking, or one that says that the router is there."""
    batch = decode_bookings(value)
    head = f"{_clock(batch.ts_ms)}  router {batch.router}  {batch.seq}"
    if batch.num_parts:
        head += f"  listing {batch.part + 1} of {batch.num_parts}"
    lines = [f"{head}  {_booking(booking)}" for booking in batch.bookings]
    return lines or [f"{head}  {batch.num_open} open"]


def _booking(booking: Booking) -> str:
    return (
        f"{booking.state}  {booking.request_id}  {booking.worker}"
        f"  {booking.prefill_tokens} tokens  {booking.num_blocks} blocks"
        f"  rank {booking.rank}  {booking.service_ms:.1f} ms"
    )


def _flat_line(record: dict[str, Any]) -> str:
    facts = {name: value for name, value in record.items() if name not in {"schema", "ts_ms"}}
    return f"{_clock(record.get('ts_ms', 0))}  {_fields(facts)}"


def _hashes(hashes: list[str]) -> str:
    more = f" and {len(hashes) - MAX_SHOWN_HASHES} more" if len(hashes) > MAX_SHOWN_HASHES else ""
    return ",".join(hashes[:MAX_SHOWN_HASHES]) + more


def _values(values: list[int]) -> str:
    return ",".join(str(value) for value in dict.fromkeys(values))


def _pairs(counts: dict[str, int]) -> str:
    return ",".join(f"{name}={count}" for name, count in counts.items()) or "none"


def _clock(ts_ms: int) -> str:
    return datetime.fromtimestamp(ts_ms / 1000).strftime("%H:%M:%S.%f")[:-3]
