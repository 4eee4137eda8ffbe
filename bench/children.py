"""A program that prints its figures as one JSON object, run to its end; several runs as one."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Sequence
from typing import Any

from controllers.errors import SetupError


def figures_of(command: Sequence[object], timeout_s: float | None = None) -> dict[str, Any]:
    """What it printed last. Raises SetupError, with the last line of its errors, if it fails."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, capture_output=True, check=True, text=True, timeout=timeout_s)
        figures: dict[str, Any] = json.loads(done.stdout)
    except subprocess.CalledProcessError as error:
        lines = str(error.stderr).strip().splitlines() or [f"exit status {error.returncode}"]
        raise SetupError(f"{' '.join(words[:2])} failed: {lines[-1]}") from error
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise SetupError(f"{' '.join(words[:2])} failed: {error}") from error
    return figures


def medians(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By name; what is no number is as in the first run."""
    return {
        name: value if isinstance(value, str) else statistics.median(run[name] for run in runs)
        for name, value in runs[0].items()
    }
