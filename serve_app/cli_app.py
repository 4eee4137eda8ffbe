"""The commands of `cachelane`, put together. Knows none of their options."""

from __future__ import annotations

import typer

from serve_app.cli_chat import chat
from serve_app.cli_config import config
from serve_app.cli_doctor import doctor
from serve_app.cli_engine import engine
from serve_app.cli_events import events
from serve_app.cli_fleet import fleet
from serve_app.cli_lifecycle import down, status, up
from serve_app.cli_plan import plan
from serve_app.cli_profile import profile
from serve_app.cli_simulate import simulate
from serve_app.cli_tune import tune

app = typer.Typer(
    help="KV-cache-aware serving on Ray Serve.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (up, down, status, fleet, events, chat, plan, doctor, profile, simulate, tune):
    app.command()(command)
app.add_typer(config, name="config")
app.add_typer(engine, name="engine")
