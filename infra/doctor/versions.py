"""Installed packages against what this product and TensorRT-LLM want. Pure; imports no package.

Versions come from `observe.installed_versions`, by distribution name; None: not installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from infra.doctor.compatibility import FAULTS, LINES, Line
from infra.doctor.finding import Finding, listed

# The package index has the name as "tensorrt_llm" or "tensorrt-llm"; metadata takes either.
TENSORRT_LLM = "tensorrt-llm"
ENGINE_PACKAGES = (TENSORRT_LLM, "torch", "transformers")
SUPPORTED_PYTHON = SpecifierSet(">=3.10,<3.14")

Versions = Mapping[str, str | None]


def check_python(version: str) -> Finding:
    """`version` as "3.12.3"."""
    if SUPPORTED_PYTHON.contains(version):
        return Finding("python.version", "ok", f"Python {version}")
    fix = "Make the environment anew with Python 3.10 to 3.13."
    return Finding("python.version", "error", f"Python {version} is not supported", fix)


def check_requirements(requirements: Iterable[str], versions: Versions) -> Finding:
    """`requirements` of this product, as its metadata list them; extras are left out."""
    wanted = [Requirement(text) for text in requirements if "extra ==" not in text]
    wrong = [problem for want in wanted if (problem := _problem(want, versions.get(want.name)))]
    if not wrong:
        return Finding("python.packages", "ok", f"all {len(wanted)} packages are as required")
    fix = "Run `make install`, or `pip install -c constraints.txt -e .` in this environment."
    return Finding("python.packages", "error", listed(wrong), fix)


def _problem(want: Requirement, version: str | None) -> str:
    if want.marker is not None and not want.marker.evaluate():
        return ""
    if version is None:
        return f"{want.name} is missing"
    if not want.specifier.contains(version, prereleases=True):
        return f"{want.name} is {version}, wanted {want.specifier}"
    return ""


def check_engine_packages(
    versions: Versions, python: str, driver: str | None, is_wanted: bool, has_host_tier: bool
) -> list[Finding]:
    """`is_wanted`: the settings name the TensorRT-LLM executor."""
    version = versions.get(TENSORRT_LLM)
    if version is None:
        return [_missing(is_wanted)]
    line = line_of(version)
    if line is None:
        return [_unknown(version)]
    head = Finding("tensorrt_llm.version", "ok", f"TensorRT-LLM {version}, line {line.name}")
    return [
        head,
        *_companions(line, versions),
        *_python(line, python),
        *_driver(line, driver),
        *_faults(version, has_host_tier, is_wanted),
    ]


def line_of(version: str) -> Line | None:
    """The row of the table for an installed version."""
    try:
        parsed = Version(version)
    except InvalidVersion:
        return None
    name = f"{parsed.major}.{parsed.minor}"
    return next((line for line in LINES if line.name == name), None)


def _missing(is_wanted: bool) -> Finding:
    if not is_wanted:
        text = "TensorRT-LLM is not installed, and the settings do not want it"
        return Finding("tensorrt_llm.version", "info", text)
    fix = "Install it with `pip install tensorrt-llm==1.2.1 --extra-index-url=<NVIDIA's index>`."
    text = "TensorRT-LLM is not installed, and executor.kind is trtllm"
    return Finding("tensorrt_llm.version", "error", text, fix)


def _unknown(version: str) -> Finding:
    names = ", ".join(line.name for line in LINES)
    fix = "Try the contract tests on this machine before you rely on it: `make test-trtllm`."
    text = f"TensorRT-LLM {version} is in no known line ({names})"
    return Finding("tensorrt_llm.version", "warning", text, fix)


def _companions(line: Line, versions: Versions) -> list[Finding]:
    torch, transformers = versions.get("torch"), versions.get("transformers")
    return [
        _companion(line, "torch", line.torch, torch),
        *_torch_cuda(line, torch or ""),
        _companion(line, "transformers", line.transformers, transformers),
    ]


def _companion(line: Line, package: str, wanted: str | None, version: str | None) -> Finding:
    name = f"{package}.version"
    if version is None:
        text = f"{package} is not installed, and TensorRT-LLM {line.name} needs it"
        return Finding(name, "error", text, f"Install {package}{wanted or ''}.")
    if wanted is None:
        text = f"{package} {version}: what TensorRT-LLM {line.name} wants is not in the table"
        fix = f"Compare it with the requirements that TensorRT-LLM {line.name} came with."
        return Finding(name, "warning", text, fix)
    if SpecifierSet(wanted).contains(_public(version), prereleases=True):
        return Finding(name, "ok", f"{package} {version}, as TensorRT-LLM {line.name} wants")
    text = f"{package} is {version}, TensorRT-LLM {line.name} was built for {wanted}"
    return Finding(name, "warning", text, f"Install {package}{wanted}.")


def _torch_cuda(line: Line, version: str) -> list[Finding]:
    """Builds of torch name their CUDA: 2.9.1+cu128 is for 12.8."""
    built = re.search(r"\+cu(\d\d)", version)
    if built is None or int(built[1]) == line.cuda:
        return []
    text = f"torch {version} is built for CUDA {built[1]}, TensorRT-LLM {line.name} for {line.cuda}"
    fix = f"Install the build of torch for CUDA {line.cuda}; the index of torch has one for each."
    return [Finding("torch.cuda", "warning", text, fix)]


def _public(version: str) -> str:
    """Without the build's tag: 2.9.1+cu130 is 2.9.1."""
    return version.partition("+")[0]


def _python(line: Line, python: str) -> list[Finding]:
    if any(python.startswith(f"{known}.") for known in line.python):
        return []
    text = f"Python is {python}, TensorRT-LLM {line.name} has wheels for {listed(line.python)}"
    fix = f"Make the environment anew with Python {line.python[-1]}."
    return [Finding("tensorrt_llm.python", "warning", text, fix)]


def _driver(line: Line, driver: str | None) -> list[Finding]:
    """`driver` as "580.159.04"; None: there is none, which another check tells."""
    if driver is None:
        return []
    major = driver.partition(".")[0]
    wants = f"TensorRT-LLM {line.name} is built with CUDA {line.cuda}"
    if major.isdecimal() and int(major) >= line.min_driver:
        return [Finding("tensorrt_llm.driver", "ok", f"driver {driver}; {wants}")]
    text = f"driver {driver} is too old: {wants}, which wants {line.min_driver} or later"
    fix = f"Install driver {line.min_driver} or later, or CUDA's forward-compatibility package."
    return [Finding("tensorrt_llm.driver", "error", text, fix)]


def _faults(version: str, has_host_tier: bool, is_wanted: bool) -> list[Finding]:
    return [
        Finding(
            f"tensorrt_llm.{fault.id}",
            "warning" if fault.needs_host_tier and is_wanted else "info",
            f"TensorRT-LLM {version}: {fault.found}",
            fault.fix,
        )
        for fault in FAULTS
        if SpecifierSet(fault.versions).contains(version, prereleases=True)
        and (has_host_tier or not fault.needs_host_tier)
    ]
