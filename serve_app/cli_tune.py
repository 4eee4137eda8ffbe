"""`cachelane tune`: what should be kept, from what the log says was asked for again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import yaml
from rich.table import Table

from controllers.errors import EventError, SettingsError, SetupError
from controllers.events import Decision, decode_batch
from controllers.retention_policy import BUILT_IN_TYPES, RetentionPolicy
from controllers.tuning import FLOOR, LEARNED, PRESENT, TIERS, Judged, Proposal, propose
from controllers.tuning_record import Record
from infra.event_bus import KafkaBus
from infra.run_state import StateDir
from infra.settings import load_settings
from serve_app.cli_common import (
    DEFAULT_STATE_DIR,
    JsonOption,
    StateDirOption,
    console,
    print_json,
    running,
)
from serve_app.cli_events import bus_settings, read

MIN_PROMPTS = 100  # fewer say nothing


def tune(
    events_file: Annotated[
        Path | None, typer.Option("--events", help="Output of `cachelane events --json`.")
    ] = None,
    decisions_file: Annotated[
        Path | None, typer.Option("--decisions", help="The same with --topic decisions.")
    ] = None,
    kafka: Annotated[str | None, typer.Option(help="host:port of another Kafka.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings file: the present policy, and Kafka.")
    ] = None,
    as_json: JsonOption = False,
    state_dir: StateDirOption = DEFAULT_STATE_DIR,
) -> None:
    """Propose what to keep, with the hit rates that the log's second half would have had."""
    if (events_file is None) != (decisions_file is None):
        raise SetupError("--events and --decisions go together: one names what the other asks for")
    is_of_fleet = events_file is None and kafka is None and config is None
    present = _present(config, state_dir if is_of_fleet else None)
    if events_file is not None and decisions_file is not None:
        record = record_of(_lines(events_file), _lines(decisions_file))
    else:
        record = _record_of_bus(kafka, config, state_dir)
    prompts = record.prompts()
    num_known = record.num_decisions - record.num_unknown
    if num_known < MIN_PROMPTS:
        raise SetupError(
            f"{num_known} of {record.num_decisions} decisions have a prompt that the events "
            f"name; at least {MIN_PROMPTS} are needed. Both must reach back equally far"
        )
    proposal = propose(prompts, record.num_blocks_of, record.block_size, present)
    if as_json:
        print_json(_plain(proposal, record))
    else:
        _print(proposal, record)


def _present(config: Path | None, state_dir: Path | None) -> RetentionPolicy:
    """Of the settings file, else of what runs for the state folder, else the default one."""
    if config is not None:
        return load_settings(config).retention
    if state_dir is None:
        return RetentionPolicy()
    running(state_dir)
    return load_settings(StateDir.at(state_dir).settings_file, env={}).retention


def record_of(events: Iterable[bytes], decisions: Iterable[bytes]) -> Record:
    """Damaged records are left out, as by every reader of the log."""
    record = Record()
    for value in events:
        try:
            record.add_batch(decode_batch(value).batch)
        except EventError:
            continue
    for value in decisions:
        try:
            record.add_decision(msgspec.json.decode(value, type=Decision))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return record


def settings_yaml(policy: RetentionPolicy) -> str:
    """What of it differs from the defaults, as a section of the settings file."""
    changed = {
        name: msgspec.to_builtins(rule)
        for name, rule in policy.request_types.items()
        if BUILT_IN_TYPES.get(name) != rule
    }
    values: dict[str, Any] = {"policy": policy.policy}
    if policy.default_request_type != RetentionPolicy().default_request_type:
        values["default_request_type"] = policy.default_request_type
    if changed:
        values["request_types"] = changed
    return yaml.safe_dump({"retention": values}, sort_keys=False)


def _record_of_bus(kafka: str | None, config: Path | None, state_dir: Path) -> Record:
    settings = bus_settings(kafka, config, state_dir)
    bus = KafkaBus(settings)

    def values(topic: str) -> Iterator[bytes]:
        reader = bus.reader(f"{settings.topic_prefix}.{topic}")
        try:
            yield from (record.value for record in read(reader, follow=False))
        finally:
            reader.close()

    return record_of(values("kv-events"), values("decisions"))


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error


def _print(proposal: Proposal, record: Record) -> None:
    console().print(_table(proposal))
    typer.echo(
        f"Of the recorded prompts' blocks {record.measured_hit_rate:.1%} were found cached.\n"
        f"Fitted to {proposal.num_fitted} prompts, judged by the {proposal.num_judged} after them; "
        f"{record.num_unknown} of {record.num_decisions} decisions name prompts that the events "
        "do not know.\n"
        "Gain over the present policy and types: of the second half. A proposal holds if it is "
        f"better on both halves and leaves every type {FLOOR:.0%} of its LRU hits.\n"
    )
    if proposal.unknown_types:
        types = ", ".join(proposal.unknown_types)
        typer.echo(
            f"The present policy does not know these types, which are its default: {types}\n"
        )
    typer.echo(f"Best that holds: {proposal.best.name}\n")
    for judged in proposal.judged:
        if judged.policy is not None and judged.name != PRESENT:
            typer.echo(f"# {judged.name}\n{settings_yaml(judged.policy)}")


def _table(proposal: Proposal) -> Table:
    kinds = sorted(proposal.judged[0].hits.asked)
    table = Table(title="Predicted hit rates of both halves (%)", title_justify="left")
    columns = ("policy", "1st", "2nd", "gain", *kinds, "least of LRU", "holds")
    for column in columns:
        table.add_column(column, justify="left" if column == "policy" else "right")
    for judged in proposal.judged:
        is_proposal = judged.name in (TIERS, LEARNED)
        table.add_row(
            judged.name,
            f"{100 * judged.first.rate:.1f}",
            f"{100 * judged.hits.rate:.1f}",
            f"{100 * judged.gains[1]:+.1f}",
            *(f"{100 * judged.hits.rate_of(kind):.1f}" for kind in kinds),
            f"{judged.least_of_lru:.0%}",
            ("yes" if judged.holds else "no") if is_proposal else "",
        )
    return table


def _plain(proposal: Proposal, record: Record) -> dict[str, Any]:
    return {
        "num_decisions": record.num_decisions,
        "num_unknown": record.num_unknown,
        "measured_hit_rate": record.measured_hit_rate,
        "num_fitted": proposal.num_fitted,
        "num_judged": proposal.num_judged,
        "unknown_types": proposal.unknown_types,
        "best": proposal.best.name,
        "policies": [_plain_judged(judged) for judged in proposal.judged],
    }


def _plain_judged(judged: Judged) -> dict[str, Any]:
    return {
        "name": judged.name,
        "hit_rate": judged.hits.rate,
        "first_half_hit_rate": judged.first.rate,
        "gains": list(judged.gains),
        "holds": judged.holds,
        "by_type": {kind: judged.hits.rate_of(kind) for kind in sorted(judged.hits.asked)},
        "least_of_lru": judged.least_of_lru,
        "settings": None if judged.policy is None else yaml.safe_load(settings_yaml(judged.policy)),
    }
