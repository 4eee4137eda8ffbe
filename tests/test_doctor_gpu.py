"""What nvidia-smi printed on real and broken machines, and what is made of it.

The H200 files were recorded on a machine with two of them and one process that held memory.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.doctor.finding import Finding
from infra.doctor.gpu import BROKEN_FIX, Wanted, check_gpus
from infra.doctor.gpu_report import App, Gpu, GpuReport, Output, parse_links, report

DATA = Path(__file__).parent / "data" / "nvidia_smi"
FIRST = "GPU-2bf3339b-a9b9-4169-2a96-34eb51e06a55"
SECOND = "GPU-7ce8175b-3288-efcd-14ce-8dc53dec1d6a"
NOTHING = Output(None, "")
BROKEN = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that "
    "the latest NVIDIA driver is installed and running.\n"
)
MIG_ROW = "0, GPU-1, NVIDIA A100-SXM4-80GB, 535.129.03, 81920, 87, 81050, 8.0, Enabled, [N/A]\n"


def recorded(name: str) -> Output:
    return Output(0, (DATA / f"h200_x2.{name}").read_text("utf-8"))


@pytest.fixture
def h200_x2() -> GpuReport:
    proc = recorded("proc_version.txt").text
    return report(recorded("gpu.csv"), recorded("apps.csv"), recorded("topo.txt"), proc)


def test_two_h200_as_recorded(h200_x2: GpuReport) -> None:
    driver = "580.159.04"
    assert h200_x2 == GpuReport(
        gpus=(
            Gpu(0, FIRST, "NVIDIA H200", driver, 143771, 4715, 138442, (9, 0), False, 0),
            Gpu(1, SECOND, "NVIDIA H200", driver, 143771, 4, 143153, (9, 0), False, 0),
        ),
        apps=(App(FIRST, 557, "python3", 4706),),
        links=("NV18",),
        has_smi=True,
        kernel_driver=driver,
    )


def test_a_gpu_that_somebody_uses_is_told_with_who(h200_x2: GpuReport) -> None:
    assert check_gpus(h200_x2, Wanted(num_gpus=1, num_replicas=2)) == [
        Finding("gpu.driver", "ok", "driver 580.159.04, 2 x NVIDIA H200"),
        Finding(
            "gpu.0.memory",
            "warning",
            "138442 of 143771 MiB free; in use by python3 (pid 557, 4706 MiB)",
            "End those processes, or set a free_gpu_memory_fraction that leaves them theirs.",
        ),
        Finding("gpu.1.memory", "ok", "143153 of 143771 MiB free"),
        Finding(
            "gpu.kv_dtype",
            "info",
            "compute capability 9.0: KV cache in fp16 and bf16, also fp8",
        ),
        Finding("gpu.links", "ok", "GPUs are joined by NV18"),
    ]


def test_more_gpus_than_there_are(h200_x2: GpuReport) -> None:
    found = [f for f in check_gpus(h200_x2, Wanted(2, 2)) if f.id == "gpu.count"]
    assert found == [
        Finding(
            "gpu.count",
            "warning",
            "2 replicas with 2 GPUs each are wanted, this machine has 2",
            "Lower executor.num_replicas, or add nodes with GPUs to the cluster.",
        )
    ]


@pytest.mark.parametrize(
    ("capability", "dtype", "fix"),
    [
        ((8, 0), "fp8", "Set the KV cache type to auto."),
        ((8, 9), "fp8", None),
        ((9, 0), "nvfp4", "Set the KV cache type to fp8."),
        ((10, 0), "nvfp4", None),
        ((8, 0), "int8", None),
    ],
)
def test_which_cache_types_a_gpu_can_keep(
    capability: tuple[int, int], dtype: str, fix: str | None
) -> None:
    gpu = Gpu(0, "GPU-1", "x", "580.1", 1000, 0, 1000, capability, False, 0)
    errors = [
        finding.fix
        for finding in check_gpus(GpuReport(gpus=(gpu,), has_smi=True), Wanted(1, 1, dtype))
        if finding.level == "error"
    ]
    assert errors == ([] if fix is None else [fix])


def test_mig_and_memory_errors() -> None:
    gpus = MIG_ROW.replace("[N/A]", "3")
    found = check_gpus(report(Output(0, gpus), NOTHING, NOTHING, ""), Wanted())
    assert [(f.id, f.level) for f in found] == [
        ("gpu.driver", "ok"),
        ("gpu.0.memory", "ok"),
        ("gpu.0.ecc", "error"),
        ("gpu.0.mig", "warning"),
        ("gpu.kv_dtype", "info"),
    ]
    assert report(Output(0, MIG_ROW), NOTHING, NOTHING, "").gpus[0].num_ecc_errors == 0


def test_no_driver() -> None:
    nothing = report(NOTHING, NOTHING, NOTHING, "")
    assert nothing == GpuReport()
    assert check_gpus(nothing, Wanted()) == [
        Finding("gpu.present", "info", "no NVIDIA GPU here, and the settings want none")
    ]
    assert check_gpus(nothing, Wanted(num_gpus=1)) == [
        Finding(
            "gpu.present",
            "error",
            "no NVIDIA GPU here, and the settings want one",
            "Give this machine or container a GPU and its driver, or set executor.num_gpus to 0.",
        )
    ]


def test_a_driver_that_does_not_answer() -> None:
    broken = report(Output(9, BROKEN), NOTHING, NOTHING, "")
    text = f"nvidia-smi failed: {BROKEN.strip()}"
    assert check_gpus(broken, Wanted(1)) == [Finding("gpu.driver", "error", text, BROKEN_FIX)]
    assert check_gpus(broken, Wanted()) == [Finding("gpu.driver", "warning", text, BROKEN_FIX)]


def test_a_driver_that_hangs() -> None:
    hung = report(Output(None, "it did not answer within 4 s"), NOTHING, NOTHING, "")
    (found,) = check_gpus(hung, Wanted(1))
    assert found.found == "nvidia-smi failed: it did not answer within 4 s"


def test_a_driver_without_its_program() -> None:
    version = recorded("proc_version.txt").text
    assert check_gpus(report(NOTHING, NOTHING, NOTHING, version), Wanted(1)) == [
        Finding(
            "gpu.driver",
            "warning",
            "driver 580.159.04 is loaded, and nvidia-smi cannot be found",
            "Put nvidia-smi on PATH.",
        )
    ]


def test_a_driver_that_does_not_know_a_field() -> None:
    old = report(
        Output(2, 'Field "compute_cap" is not a valid field to query.\n\n'), NOTHING, NOTHING, ""
    )
    (found,) = check_gpus(old, Wanted(1))
    assert found.level == "error"
    assert 'Field "compute_cap" is not a valid field' in found.found


def test_links_of_four_gpus_in_two_pairs() -> None:
    topology = (
        "\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\n"
        "GPU0\t X \tNV12\tSYS\tSYS\tPXB\t0-31\n"
        "GPU1\tNV12\t X \tSYS\tSYS\tPXB\t0-31\n"
        "GPU2\tSYS\tSYS\t X \tNV12\tSYS\t32-63\n"
        "GPU3\tSYS\tSYS\tNV12\t X \tSYS\t32-63\n"
        "NIC0\tPXB\tPXB\tSYS\tSYS\t X \t\n"
    )
    assert parse_links(topology) == ("NV12", "SYS", "SYS", "SYS", "SYS", "NV12")
    gpu = Gpu(0, "GPU-1", "x", "580.1", 1000, 0, 1000, (9, 0), False, 0)
    joined = GpuReport(gpus=(gpu,), links=parse_links(topology), has_smi=True)
    levels = {
        wanted: [f.level for f in check_gpus(joined, Wanted(wanted)) if f.id == "gpu.links"]
        for wanted in (1, 2)
    }
    assert levels == {1: ["info"], 2: ["warning"]}
