"""Asking nvidia-smi and /proc about GPUs, each within a bound. Judges nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

from infra.doctor.gpu_report import APP_FIELDS, GPU_FIELDS, GpuReport, Output, report

# nvidia-smi answers in 30 ms with a loaded driver, in some seconds if it has to load it first.
TIMEOUT_S = 4.0
PROC_VERSION = Path("/proc/driver/nvidia/version")


def look_at_gpus() -> GpuReport:
    """Takes at most three times TIMEOUT_S, and that only with a driver that hangs."""
    gpus = _query("gpu", GPU_FIELDS)
    if gpus.code != 0:
        return report(gpus, Output(None, ""), Output(None, ""), _proc_version())
    apps = _query("compute-apps", APP_FIELDS)
    return report(gpus, apps, _smi("topo", "-m"), _proc_version())


def _query(what: str, fields: tuple[str, ...]) -> Output:
    return _smi(f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits")


def _smi(*arguments: str) -> Output:
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        return Output(None, "")
    except subprocess.TimeoutExpired:
        return Output(None, f"it did not answer within {TIMEOUT_S:g} s")
    except OSError as error:
        return Output(None, str(error))
    return Output(done.returncode, done.stdout or done.stderr)


def _proc_version() -> str:
    try:
        return PROC_VERSION.read_text("utf-8", "replace")
    except OSError:
        return ""
