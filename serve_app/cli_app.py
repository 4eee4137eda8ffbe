"""The commands of `cachelane`, put together. Knows none of their options."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import typer

# Command -> its file here, in the order of the help.
COMMANDS = {
    "up": "cli_lifecycle",
    "down": "cli_lifecycle",
    "status": "cli_lifecycle",
    "fleet": "cli_fleet",
    "events": "cli_events",
    "chat": "cli_chat",
    "plan": "cli_plan",
    "doctor": "cli_doctor",
    "profile": "cli_profile",
    "simulate": "cli_simulate",
    "tune": "cli_tune",
    "config": "cli_config",
    "engine": "cli_engine",
}


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """With the command that they begin with alone, as all together take half a second to import;
    with all of them if they begin with anything else."""
    app = typer.Typer(
        help="KV-cache-aware serving on Ray Serve.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_nothing)  # else a single command would be called without its name
    for name in [name for name in arguments[:1] if name in COMMANDS] or COMMANDS:
        command = getattr(import_module(f"serve_app.{COMMANDS[name]}"), name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command()(command)
    return app


def _nothing() -> None:
    pass
