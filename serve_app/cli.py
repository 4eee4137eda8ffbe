"""The `cachelane` command. Exit codes: 0 done, 1 failed (one line on stderr), 2 wrong usage."""

from __future__ import annotations

import os
import sys

from controllers.errors import CachelaneError

INTERRUPTED = 130


def main() -> None:
    try:
        # Here, because a Ctrl-C while this imports for half a second must end quietly as well.
        from serve_app.cli_app import app_for

        app_for(sys.argv[1:])()
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
