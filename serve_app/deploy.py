"""The short-lived process that deploys the service: `python -m serve_app.deploy`.

A process of its own, because Ray reads its environment when it is imported, and because the import
takes seconds that then pass while Ray and the broker start.
"""

from __future__ import annotations

import json
import sys
import traceback

from infra.settings import load_settings
from serve_app.app import deploy


def main() -> int:
    """Reads {"settings": path of a settings file, "address": host:port of Ray}; 0 when it runs."""
    line = sys.stdin.readline()
    if not line.strip():
        return 1
    order = json.loads(line)
    try:
        deploy(load_settings(order["settings"], env={}), order["address"])
    except Exception as error:
        traceback.print_exc()
        print(summary(error), flush=True)
        return 1
    return 0


def summary(error: BaseException) -> str:
    """The line of an error that says most: Ray puts the replica's own error at the end."""
    lines = [line.strip() for line in str(error).splitlines()]
    texts = [line for line in lines if line]
    return texts[-1] if texts else type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
