"""What a check says: one fact about this machine, how bad it is, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Level = Literal["ok", "info", "warning", "error"]


class Finding(msgspec.Struct, frozen=True):
    """`id` is stable, for scripts; `fix` is one imperative sentence, empty if there is nothing to
    do. `error`: a fleet will not start or not work; `warning`: it works worse, or may not."""

    id: str
    level: Level
    found: str
    fix: str = ""


def is_passed(findings: Iterable[Finding], is_strict: bool) -> bool:
    """Whether nothing is an error; strictly, not even a warning."""
    bad = {"error", "warning"} if is_strict else {"error"}
    return not any(finding.level in bad for finding in findings)


def listed(values: Iterable[object]) -> str:
    """For a sentence: sorted, at most six of them."""
    texts = sorted(str(value) for value in values)
    more = f" and {len(texts) - 6} more" if len(texts) > 6 else ""
    return ", ".join(texts[:6]) + more
