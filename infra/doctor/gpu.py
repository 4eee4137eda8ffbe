"""GPUs of this machine against what the settings want of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from infra.doctor.compatibility import KV_DTYPE_TO_CAPABILITY, MIN_CAPABILITY
from infra.doctor.finding import Finding, Level, listed
from infra.doctor.gpu_report import Gpu, GpuReport

# Of a GPU's memory; what a driver keeps for itself is less.
MAX_FOREIGN_SHARE = 0.02
BROKEN_FIX = "Reload the driver or restart the machine; in a container, start it with --gpus all."


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the settings want: GPUs of one replica, replicas, KV cache type ("auto" if open)."""

    num_gpus: float = 0.0
    num_replicas: int = 1
    kv_dtype: str = "auto"

    @property
    def total(self) -> float:
        return self.num_gpus * self.num_replicas


def check_gpus(report: GpuReport, wanted: Wanted) -> list[Finding]:
    if not report.gpus:
        return [_no_gpu(report, wanted)]
    return [
        _driver(report),
        *_count(report, wanted),
        *(_memory(gpu, report) for gpu in report.gpus),
        *(finding for gpu in report.gpus for finding in _health(gpu)),
        *_kv_dtypes(report, wanted),
        *_links(report, wanted),
    ]


def _no_gpu(report: GpuReport, wanted: Wanted) -> Finding:
    if report.problem:
        text = f"nvidia-smi failed: {report.problem}"
        return Finding("gpu.driver", "error" if wanted.num_gpus else "warning", text, BROKEN_FIX)
    if report.kernel_driver and not report.has_smi:
        text = f"driver {report.kernel_driver} is loaded, and nvidia-smi cannot be found"
        return Finding("gpu.driver", "warning", text, "Put nvidia-smi on PATH.")
    if not wanted.num_gpus:
        return Finding("gpu.present", "info", "no NVIDIA GPU here, and the settings want none")
    fix = "Give this machine or container a GPU and its driver, or set executor.num_gpus to 0."
    return Finding("gpu.present", "error", "no NVIDIA GPU here, and the settings want one", fix)


def _driver(report: GpuReport) -> Finding:
    names = listed({gpu.name for gpu in report.gpus})
    text = f"driver {report.gpus[0].driver}, {len(report.gpus)} x {names}"
    return Finding("gpu.driver", "ok", text)


def _count(report: GpuReport, wanted: Wanted) -> list[Finding]:
    present = len(report.gpus)
    if wanted.total <= present:
        return []
    text = (
        f"{wanted.num_replicas} replicas with {wanted.num_gpus:g} GPUs each are wanted, "
        f"this machine has {present}"
    )
    fix = "Lower executor.num_replicas, or add nodes with GPUs to the cluster."
    return [Finding("gpu.count", "warning", text, fix)]


def _memory(gpu: Gpu, report: GpuReport) -> Finding:
    name = f"gpu.{gpu.index}.memory"
    if gpu.free_mib is None or not gpu.total_mib:
        fix = "Ask the engine itself; nvidia-smi does not tell under this driver."
        return Finding(name, "warning", "its memory is not told", fix)
    text = f"{gpu.free_mib} of {gpu.total_mib} MiB free"
    apps = [app for app in report.apps if app.gpu_uuid == gpu.uuid]
    if (gpu.used_mib or 0) <= MAX_FOREIGN_SHARE * gpu.total_mib:
        return Finding(name, "ok", text)
    users = [f"{app.name} (pid {app.pid}, {app.used_mib or '?'} MiB)" for app in apps]
    whose = f"; in use by {listed(users)}" if users else "; in use by a process it does not name"
    fix = "End those processes, or set a free_gpu_memory_fraction that leaves them theirs."
    return Finding(name, "warning", text + whose, fix)


def _health(gpu: Gpu) -> list[Finding]:
    found = []
    if gpu.num_ecc_errors:
        text = f"{gpu.num_ecc_errors} uncorrected memory errors since the driver was loaded"
        fix = f"Take GPU {gpu.index} out of service and reset or replace it."
        found.append(Finding(f"gpu.{gpu.index}.ecc", "error", text, fix))
    if gpu.has_mig:
        text = "MIG is on: an engine sees one slice, and slices have no peer access"
        fix = "Keep tensor parallelism at 1 on it, or turn MIG off."
        found.append(Finding(f"gpu.{gpu.index}.mig", "warning", text, fix))
    if gpu.capability and gpu.capability < MIN_CAPABILITY:
        text = f"compute capability {_dotted(gpu.capability)} is older than TensorRT-LLM supports"
        fix = f"Use a GPU of compute capability {_dotted(MIN_CAPABILITY)} or later."
        found.append(Finding(f"gpu.{gpu.index}.capability", "error", text, fix))
    return found


def _kv_dtypes(report: GpuReport, wanted: Wanted) -> list[Finding]:
    known = [gpu.capability for gpu in report.gpus if gpu.capability]
    if not known:
        return []
    oldest = min(known)
    possible = [dtype for dtype, needed in KV_DTYPE_TO_CAPABILITY.items() if oldest >= needed]
    needed = KV_DTYPE_TO_CAPABILITY.get(wanted.kv_dtype)
    if needed and oldest < needed:
        text = (
            f"a {wanted.kv_dtype} KV cache needs compute capability {_dotted(needed)}, "
            f"this machine has {_dotted(oldest)}"
        )
        fix = f"Set the KV cache type to {possible[-1] if possible else 'auto'}."
        return [Finding("gpu.kv_dtype", "error", text, fix)]
    also = f"also {listed(possible)}" if possible else "neither fp8 nor nvfp4"
    text = f"compute capability {_dotted(oldest)}: KV cache in fp16 and bf16, {also}"
    return [Finding("gpu.kv_dtype", "info", text)]


def _links(report: GpuReport, wanted: Wanted) -> list[Finding]:
    if not report.links:
        return []
    slow = {link for link in report.links if not link.startswith("NV")}
    text = f"GPUs are joined by {listed(set(report.links))}"
    if not slow:
        return [Finding("gpu.links", "ok", text)]
    level: Level = "warning" if wanted.num_gpus > 1 else "info"
    fix = "Put the GPUs of one replica on NVLink, or keep tensor parallelism at 1."
    return [Finding("gpu.links", level, f"{text}, not all of it NVLink", fix)]


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
