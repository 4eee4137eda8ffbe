"""Programs that benchmarks take figures from."""

from __future__ import annotations

import sys

import pytest

from bench.children import figures_of, medians
from controllers.errors import SetupError


def test_figures_are_read() -> None:
    assert figures_of([sys.executable, "-c", "print('{\"p50\": 1.5}')"]) == {"p50": 1.5}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        ("raise SystemExit(3)", "exit status 3"),
        ("print('no figures')", "Expecting value"),
    ],
)
def test_a_program_that_fails_is_named_with_its_reason(code: str, message: str) -> None:
    with pytest.raises(SetupError) as failed:
        figures_of([sys.executable, "-c", code])
    assert str(failed.value).startswith(f"{sys.executable} -c failed: {message}")


def test_a_program_that_is_missing_or_hangs() -> None:
    with pytest.raises(SetupError, match="No such file or directory: '/nope'"):
        figures_of(["/nope", "x"])
    with pytest.raises(SetupError, match="timed out after"):
        figures_of([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=0.1)


def test_medians_of_numbers_only() -> None:
    runs = [{"version": "1", "a": 1.0}, {"version": "1", "a": 5.0}, {"version": "1", "a": 2.0}]
    assert medians(runs) == {"version": "1", "a": 2.0}
