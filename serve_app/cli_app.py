"""The commands of `cachelane`, put together. Knows none of their options."""

from __future__ import annotations

import typer

from serve_app.cli_chat import chat
from serve_app.cli_config import config
from serve_app.cli_events import events
from serve_app.cli_fleet import fleet
from serve_app.cli_lifecycle import down, status, up

app = typer.Typer(
    help="KV-cache-aware serving on Ray Serve.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (up, down, status, fleet, events, chat):
    app.command()(command)
app.add_typer(config, name="config")
