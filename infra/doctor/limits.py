"""What the machine itself allows: files, memory, disk, ports. Pure but for `infra.preflight`."""

from __future__ import annotations

from collections.abc import Callable

from controllers.errors import SetupError
from infra.doctor.finding import Finding, Level
from infra.settings_sections import ExecutorSettings

# Ray raises its own soft limit to this, if the hard one lets it.
WANTED_OPEN_FILES = 65_536
MIN_OPEN_FILES = 4_096
SAFE_EVENT_BUFFER = 16_384  # TensorRT-LLM names 16 K to 64 K as the field's range


def from_preflight(id: str, ok: str, look: Callable[[], None]) -> Finding:
    """A check that raises "what is wrong: what to do", as those of `infra.preflight` do."""
    try:
        look()
    except SetupError as error:
        found, _, advice = str(error).partition(": ")
        fix = f"{advice[:1].upper()}{advice[1:]}."
        return Finding(id, "error", found, fix)
    return Finding(id, "ok", ok)


def check_open_files(soft: int, hard: int) -> Finding:
    """Limits of this process; -1: none."""
    reachable = max(soft, hard) if hard != -1 else WANTED_OPEN_FILES
    if reachable >= WANTED_OPEN_FILES:
        return Finding("machine.open_files", "ok", f"{soft} open files, {_limit(hard)} at most")
    level: Level = "warning" if reachable >= MIN_OPEN_FILES else "error"
    text = f"at most {reachable} open files; a busy fleet holds more sockets"
    fix = f"Raise the limit with `ulimit -n {WANTED_OPEN_FILES}` before the start."
    return Finding("machine.open_files", level, text, fix)


def _limit(hard: int) -> str:
    return "unlimited" if hard == -1 else str(hard)


def check_executor(settings: ExecutorSettings) -> list[Finding]:
    """Settings that are valid and seldom meant."""
    found = []
    key, buffer = "executor.event_buffer_size", settings.event_buffer_size
    if settings.kind == "trtllm":
        key, buffer = "executor.trtllm.event_buffer_max_size", settings.trtllm.event_buffer_max_size
    if buffer < SAFE_EVENT_BUFFER:
        text = f"{key} is {buffer}: bursts lose events"
        fix = f"Set {key} to 65536; a lost event costs a snapshot each time."
        found.append(Finding("settings.event_buffer", "warning", text, fix))
    size = settings.block_size
    if size < 2 or size & (size - 1):
        text = f"executor.block_size is {size}, no power of two: TensorRT-LLM would refuse it"
        fix = f"Set executor.block_size to {max(2, 1 << (size.bit_length() - 1))}."
        found.append(Finding("settings.block_size", "warning", text, fix))
    return found
