"""Checks run side by side, and a broken one hides nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from controllers.errors import SetupError
from infra.doctor.finding import Finding, is_passed, listed
from infra.doctor.limits import check_executor, check_open_files, from_preflight
from infra.doctor.run import REPORT_FIX, SLOW_FIX, Check, run_checks
from infra.settings_sections import ExecutorSettings
from infra.settings_trtllm import TrtllmSettings

OK = Finding("a", "ok", "fine")


@contextmanager
def hanging() -> Iterator[Check]:
    """A check that ends only when the test does."""
    release = threading.Event()

    def look() -> list[Finding]:
        release.wait()
        return [OK]

    try:
        yield Check("slow", look, timeout_s=0.05)
    finally:
        release.set()


def fail() -> list[Finding]:
    raise OSError(5, "bad\nthing")


def test_findings_come_in_the_order_of_the_checks() -> None:
    other = Finding("b", "error", "broken", "Mend it.")
    checks = [Check("a", lambda: [OK]), Check("b", lambda: [other, other])]
    assert run_checks(checks) == [OK, other, other]
    assert run_checks([]) == []


def test_a_check_that_fails_is_a_finding() -> None:
    text = "the check itself failed: OSError: [Errno 5] bad thing"
    assert run_checks([Check("x", fail), Check("a", lambda: [OK])]) == [
        Finding("x", "warning", text, REPORT_FIX),
        OK,
    ]


def test_a_check_that_hangs_is_left_behind() -> None:
    with hanging() as check:
        found = run_checks([check, Check("a", lambda: [OK])])
    text = "the check did not end within 0.05 s"
    assert found == [Finding("slow", "warning", text, SLOW_FIX), OK]


def test_what_fails_a_build() -> None:
    warning, error = Finding("w", "warning", "x"), Finding("e", "error", "x")
    verdicts = [
        is_passed([OK, f], strict) for f in (OK, warning, error) for strict in (False, True)
    ]
    assert verdicts == [True, True, True, False, False, False]


def test_a_preflight_error_is_split_into_fault_and_fix() -> None:
    def look() -> None:
        raise SetupError("the disk is full: free some space, or use --state-dir")

    assert from_preflight("machine.disk", "enough", look) == Finding(
        "machine.disk", "error", "the disk is full", "Free some space, or use --state-dir."
    )
    assert from_preflight("machine.disk", "enough", lambda: None) == Finding(
        "machine.disk", "ok", "enough"
    )


def test_open_files() -> None:
    limits = [(1024, 1024), (1024, 20_000), (1024, 65_536), (1024, -1), (1_048_576, 1_048_576)]
    assert [check_open_files(*limit).level for limit in limits] == [
        "error",
        "warning",
        "ok",
        "ok",
        "ok",
    ]


def test_settings_seldom_meant() -> None:
    assert check_executor(ExecutorSettings()) == []
    odd = check_executor(ExecutorSettings(event_buffer_size=1024, block_size=33))
    assert [(f.id, f.level, f.fix) for f in odd] == [
        (
            "settings.event_buffer",
            "warning",
            "Set executor.event_buffer_size to 65536; a lost event costs a snapshot each time.",
        ),
        ("settings.block_size", "warning", "Set executor.block_size to 32."),
    ]


def test_the_event_buffer_of_tensorrt_llm() -> None:
    trtllm = TrtllmSettings(event_buffer_max_size=1024)
    (found,) = check_executor(ExecutorSettings(kind="trtllm", trtllm=trtllm))
    assert found.found == "executor.trtllm.event_buffer_max_size is 1024: bursts lose events"


def test_a_list_in_a_sentence_stays_short() -> None:
    assert listed(["b", "a"]) == "a, b"
    assert listed(range(9)) == "0, 1, 2, 3, 4, 5 and 3 more"
