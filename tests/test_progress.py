"""The start's progress on a terminal and elsewhere."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from controllers.errors import SetupError
from serve_app.progress import StartProgress


def console(is_terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=is_terminal, no_color=True, width=60)


def text_of(out: Console) -> str:
    assert isinstance(out.file, io.StringIO)
    text = re.sub(r"\x1b\[[?\d]*\w", "", out.file.getvalue())
    return re.sub(r"\d+\.\d s", "T s", text)


def test_plain_lines_elsewhere() -> None:
    out = console(False)
    with StartProgress(out) as progress:
        progress.say("Kafka", "starting")
        progress.say("Kafka", "WARNING: it keeps nothing")
        progress.done("Kafka", "127.0.0.1:9092")
    assert text_of(out) == (
        "Kafka: starting ...\nKafka: WARNING: it keeps nothing\nKafka: 127.0.0.1:9092 (T s)\n"
    )


def test_what_was_under_way_when_it_failed_is_marked() -> None:
    out = console(False)

    def start() -> None:
        with StartProgress(out) as progress:
            progress.done("Ray", "up")
            progress.say("model", "fetching")
            raise SetupError("no network")

    with pytest.raises(SetupError):
        start()
    assert text_of(out) == "Ray: up (T s)\nmodel: fetching ...\nmodel: stopped (T s)\n"


def test_a_table_on_a_terminal() -> None:
    out = console(True)
    with StartProgress(out) as progress:
        progress.say("Ray", "starting")
        progress.done("Ray", "127.0.0.1:6379")
        progress.fail("model", "no network")
    rows = [line.split() for line in text_of(out).splitlines() if "✓" in line or "✗" in line]
    assert rows[-2:] == [
        ["✓", "Ray", "127.0.0.1:6379", "T", "s"],
        ["✗", "model", "no", "network", "T", "s"],
    ]
