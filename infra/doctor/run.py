"""Running checks side by side, each within its time. Knows nothing of what they look at.

A check that fails or does not come back is a finding like any other, so one broken part of a
machine hides nothing of the rest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from infra.doctor.finding import Finding

REPORT_FIX = "Report this as a fault of the check, with the command's output."
SLOW_FIX = "Look at what it waits for, for example a hanging driver, disk or name server."


@dataclass(frozen=True, slots=True)
class Check:
    """`look` may block for a while; it is left behind after `timeout_s`."""

    id: str
    look: Callable[[], list[Finding]]
    timeout_s: float = 3.0


@dataclass(slots=True)
class _Running:
    check: Check
    thread: threading.Thread
    findings: list[Finding] = field(default_factory=list)


def run_checks(checks: Sequence[Check]) -> list[Finding]:
    """All at once, findings in the order of the checks. Takes as long as the longest timeout."""
    started_s = time.monotonic()
    running = [_start(check) for check in checks]
    return [finding for one in running for finding in _wait(one, started_s)]


def _start(check: Check) -> _Running:
    # A daemon: a thread that hangs in a driver must not keep the program from ending.
    one = _Running(check, threading.Thread(daemon=True, name=f"check {check.id}"))
    one.thread.run = lambda: one.findings.extend(_look(check))  # type: ignore[method-assign]
    one.thread.start()
    return one


def _look(check: Check) -> list[Finding]:
    try:
        return check.look()
    except Exception as error:
        text = f"the check itself failed: {type(error).__name__}: {error}"
        return [Finding(check.id, "warning", " ".join(text.split()), REPORT_FIX)]


def _wait(one: _Running, started_s: float) -> list[Finding]:
    left_s = started_s + one.check.timeout_s - time.monotonic()
    one.thread.join(max(0.0, left_s))
    if one.thread.is_alive():
        text = f"the check did not end within {one.check.timeout_s:g} s"
        return [Finding(one.check.id, "warning", text, SLOW_FIX)]
    return one.findings
