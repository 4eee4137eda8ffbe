"""`cachelane tune`: what should be kept, from what the log says was asked for again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import yaml
from rich.table import Table

from controllers.errors import SetupError
from controllers.retention_policy import BUILT_IN_TYPES, RetentionPolicy
from controllers.tuning import FLOOR, LEARNED, PRESENT, TIERS, Judged, Proposal, propose
from infra.event_bus import KafkaBus
from infra.run_state import StateDir
from infra.settings import load_settings
from serve_app.cli_common import (
    DEFAULT_STATE_DIR,
    JsonOption,
    StateDirOption,
    console,
    print_json,
    read_bytes,
    running,
)
from serve_app.cli_events import bus_settings, read
from serve_app.tune_log import Log, Source, read_log

MIN_PROMPTS = 100  # fewer say nothing


def tune(
    events_file: Annotated[
        Path | None,
        typer.Option("--events", help="Output of `cachelane events --json`, plain or gzip."),
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
        log = _log_of_files(events_file, decisions_file)
    else:
        log = _log_of_bus(kafka, config, state_dir)
    record, prompts = log.record, log.record.prompts()
    if record.num_known < MIN_PROMPTS:
        raise SetupError(_too_little(log))
    proposal = propose(prompts, record.num_blocks_of, record.block_size, present)
    if as_json:
        print_json(_plain(proposal, log))
    else:
        _print(proposal, log)


def _too_little(log: Log) -> str:
    record = log.record
    skipped = f". Unreadable: {'; '.join(log.skipped)}" if log.skipped else ""
    unserved = f" ({record.num_unserved} had no first token)" if record.num_unserved else ""
    return (
        f"{record.num_known} of {record.num_decisions} decisions have a prompt that the events "
        f"name{unserved}; at least {MIN_PROMPTS} are needed. Both must reach back equally far"
        f"{skipped}"
    )


def _present(config: Path | None, state_dir: Path | None) -> RetentionPolicy:
    """Of the settings file, else of what runs for the state folder, else the default one."""
    if config is not None:
        return load_settings(config).retention
    if state_dir is None:
        return RetentionPolicy()
    running(state_dir)
    return load_settings(StateDir.at(state_dir).settings_file, env={}).retention


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


def _log_of_bus(kafka: str | None, config: Path | None, state_dir: Path) -> Log:
    settings = bus_settings(kafka, config, state_dir)
    bus = KafkaBus(settings)

    def source(topic: str) -> Source:
        name = f"{settings.topic_prefix}.{topic}"
        return Source(f"topic {name}", values(name))

    def values(topic: str) -> Iterator[bytes]:
        reader = bus.reader(topic)
        try:
            yield from (record.value for record in read(reader, follow=False))
        finally:
            reader.close()

    return read_log(source("kv-events"), source("decisions"))


def _log_of_files(events: Path, decisions: Path) -> Log:
    """Dumps, plain or gzip. Raises SettingsError."""
    sources = [Source(str(path), read_bytes(path).splitlines()) for path in (events, decisions)]
    return read_log(*sources)


def _print(proposal: Proposal, log: Log) -> None:
    console().print(_table(proposal))
    typer.echo(_about(proposal, log))
    if proposal.unknown_types:
        types = ", ".join(proposal.unknown_types)
        typer.echo(
            f"The present policy does not know these types, which are its default: {types}\n"
        )
    why_none = _why_none(proposal)
    if why_none:
        typer.echo(f"No proposal: {why_none}")
        return
    typer.echo(f"Best that holds: {proposal.best.name}\n")
    for judged in proposal.judged:
        if judged.policy is not None and judged.name != PRESENT:
            typer.echo(f"# {judged.name}\n{settings_yaml(judged.policy)}")


def _about(proposal: Proposal, log: Log) -> str:
    record = log.record
    skipped = "".join(f"Unreadable and skipped: {each}.\n" for each in log.skipped)
    unserved = (
        f"{record.num_unserved} decisions without a first token are left out.\n"
        if record.num_unserved
        else ""
    )
    return (
        f"{skipped}{unserved}"
        f"Of the recorded prompts' blocks {record.measured_hit_rate:.1%} were found cached.\n"
        f"Fitted to {proposal.num_fitted} prompts, judged by the {proposal.num_judged} after them; "
        f"{record.num_unknown} of {record.num_decisions} decisions name prompts that the events "
        "do not know.\n"
        "Gain over the present policy and types: of the second half. A proposal holds if it is "
        f"better on both halves and leaves every type {FLOOR:.0%} of its LRU hits.\n"
    )


def _why_none(proposal: Proposal) -> str:
    """Why the record cannot tell one policy from another; "" if it can."""
    if not proposal.is_full:
        return (
            "there was no cache pressure. The prompts of each half fit into the caches, so nothing "
            "is ever evicted and every policy has the same hits. Record a busier or longer time."
        )
    if proposal.is_tie:
        return "every policy, LRU too, has the same hits on both halves."
    return ""


def _table(proposal: Proposal) -> Table:
    """A column for each policy: there are four of them, and any number of request types."""
    table = Table(title="Predicted hit rates of both halves (%)", title_justify="left")
    table.add_column("", overflow="fold")
    for judged in proposal.judged:
        table.add_column(judged.name, justify="right", no_wrap=True)
    columns = [_figures(judged) for judged in proposal.judged]
    for row in columns[0]:
        table.add_row(row, *(column[row] for column in columns))
    return table


def _figures(judged: Judged) -> dict[str, str]:
    types = sorted(judged.hits.asked)
    is_proposal = judged.name in (TIERS, LEARNED)
    return {
        "1st half": f"{100 * judged.first.rate:.1f}",
        "2nd half": f"{100 * judged.hits.rate:.1f}",
        "gain": f"{100 * judged.gains[1]:+.1f}",
        **{f"2nd, {each}": f"{100 * judged.hits.rate_of(each):.1f}" for each in types},
        "least of LRU": f"{judged.least_of_lru:.0%}",
        "holds": ("yes" if judged.holds else "no") if is_proposal else "",
    }


def _plain(proposal: Proposal, log: Log) -> dict[str, Any]:
    record, why_none = log.record, _why_none(proposal)
    return {
        "num_decisions": record.num_decisions,
        "num_unknown": record.num_unknown,
        "num_unserved": record.num_unserved,
        "num_skipped_events": log.events.num_skipped,
        "num_skipped_decisions": log.decisions.num_skipped,
        "measured_hit_rate": record.measured_hit_rate,
        "num_fitted": proposal.num_fitted,
        "num_judged": proposal.num_judged,
        "unknown_types": proposal.unknown_types,
        "why_no_proposal": why_none or None,
        "best": proposal.best.name,
        "policies": [_plain_judged(judged, proposes=not why_none) for judged in proposal.judged],
    }


def _plain_judged(judged: Judged, proposes: bool) -> dict[str, Any]:
    settings = settings_yaml(judged.policy) if judged.policy is not None and proposes else "null"
    return {
        "name": judged.name,
        "hit_rate": judged.hits.rate,
        "first_half_hit_rate": judged.first.rate,
        "gains": list(judged.gains),
        "holds": judged.holds,
        "by_type": {kind: judged.hits.rate_of(kind) for kind in sorted(judged.hits.asked)},
        "least_of_lru": judged.least_of_lru,
        "settings": yaml.safe_load(settings),
    }
