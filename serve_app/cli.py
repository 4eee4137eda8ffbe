"""The `cachelane` command. Exit codes: 0 done, 1 failed (one line on stderr), 2 wrong usage."""

from __future__ import annotations

import os
import sys

import typer

from controllers.errors import CachelaneError
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

INTERRUPTED = 130


def main() -> None:
    try:
        app()
    except CachelaneError as error:
        # One line, whatever a foreign message brought along.
        print(f"cachelane: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of a pipe left, as `head` does; what is still buffered has no reader either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


if __name__ == "__main__":
    main()
