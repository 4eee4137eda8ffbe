"""What nvidia-smi prints -> GPUs, the processes on them and their links. Pure.

Written against the output of driver 580 on H200; fields that it does not know read "[N/A]".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

GPU_FIELDS = (
    "index",
    "uuid",
    "name",
    "driver_version",
    "memory.total",
    "memory.used",
    "memory.free",
    "compute_cap",
    "mig.mode.current",
    "ecc.errors.uncorrected.volatile.total",
)
APP_FIELDS = ("gpu_uuid", "pid", "process_name", "used_memory")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_DRIVER = re.compile(r"NVRM version: .*?\s(\d+\.\d+(?:\.\d+)?)\s")


class Output(NamedTuple):
    """Of one program; `code` None: it is not there or did not end in time."""

    code: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """Memory in MiB; None: not told."""

    index: int
    uuid: str
    name: str
    driver: str
    total_mib: int | None
    used_mib: int | None
    free_mib: int | None
    capability: tuple[int, int] | None
    has_mig: bool
    num_ecc_errors: int


@dataclass(frozen=True, slots=True)
class App:
    """A process with memory on a GPU."""

    gpu_uuid: str
    pid: int
    name: str
    used_mib: int | None


@dataclass(frozen=True, slots=True)
class GpuReport:
    """`problem` is what nvidia-smi said instead; "" if it worked. `kernel_driver`: the version
    that /proc tells, "" if there is none."""

    gpus: tuple[Gpu, ...] = ()
    apps: tuple[App, ...] = ()
    links: tuple[str, ...] = ()
    problem: str = ""
    has_smi: bool = False
    kernel_driver: str = ""


def report(gpus: Output, apps: Output, topology: Output, proc_version: str) -> GpuReport:
    """The three answers of nvidia-smi and /proc/driver/nvidia/version put together."""
    found = _DRIVER.search(proc_version)
    kernel_driver = found[1] if found else ""
    if gpus.code is None and not gpus.text:
        return GpuReport(kernel_driver=kernel_driver)
    if gpus.code != 0:
        problem = " ".join(gpus.text.split()) or f"it ended with {gpus.code}"
        return GpuReport(problem=problem, has_smi=True, kernel_driver=kernel_driver)
    return GpuReport(
        gpus=tuple(_gpu(row) for row in _rows(gpus.text, len(GPU_FIELDS))),
        apps=tuple(_app(row) for row in _rows(apps.text, len(APP_FIELDS)) if apps.code == 0),
        links=parse_links(topology.text) if topology.code == 0 else (),
        has_smi=True,
        kernel_driver=kernel_driver,
    )


def parse_links(topology: str) -> tuple[str, ...]:
    """How each pair of GPUs is joined: "NV18", "PIX", "PHB", "NODE", "SYS" ... of `topo -m`."""
    lines = [_COLOUR.sub("", line).split() for line in topology.splitlines()]
    rows = [line for line in lines if line and re.fullmatch(r"GPU\d+", line[0])]
    rows = [row for row in rows if len(row) > len(rows) and "X" in row]  # not the heading
    return tuple(rows[i][1 + j] for i in range(len(rows)) for j in range(i + 1, len(rows)))


def _rows(text: str, width: int) -> list[list[str]]:
    """CSV without quotes: a comma in a process's path would make a row too wide."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [row for row in rows if len(row) == width]


def _gpu(row: list[str]) -> Gpu:
    index, uuid, name, driver, total, used, free, capability, mig, ecc = row
    return Gpu(
        index=_int(index) or 0,
        uuid=uuid,
        name=name,
        driver=driver,
        total_mib=_int(total),
        used_mib=_int(used),
        free_mib=_int(free),
        capability=_capability(capability),
        has_mig=mig == "Enabled",
        num_ecc_errors=_int(ecc) or 0,
    )


def _app(row: list[str]) -> App:
    uuid, pid, name, used = row
    return App(uuid, _int(pid) or 0, name, _int(used))


def _int(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _capability(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None
