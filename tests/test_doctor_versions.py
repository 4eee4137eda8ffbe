"""Installed versions against the table, and against this product's own requirements."""

from __future__ import annotations

import pytest

from infra.doctor import observe
from infra.doctor.compatibility import CUDA_TO_DRIVER, LINES
from infra.doctor.finding import Finding
from infra.doctor.versions import (
    check_engine_packages,
    check_python,
    check_requirements,
    line_of,
)

GOOD = {"tensorrt-llm": "1.2.1", "torch": "2.9.1+cu130", "transformers": "4.57.3"}


def levels(
    versions: dict[str, str | None],
    python: str = "3.12.3",
    driver: str | None = "580.159.04",
    has_host_tier: bool = False,
) -> dict[str, str]:
    found = check_engine_packages(versions, python, driver, True, has_host_tier)
    return {finding.id: finding.level for finding in found}


def test_a_fitting_set() -> None:
    assert levels({**GOOD}) == {
        "tensorrt_llm.version": "ok",
        "torch.version": "ok",
        "transformers.version": "ok",
        "tensorrt_llm.driver": "ok",
    }


def test_a_torch_that_it_was_not_built_for() -> None:
    found = check_engine_packages({**GOOD, "torch": "2.11.0"}, "3.12.3", "580.1", True, False)
    (torch,) = [finding for finding in found if finding.id == "torch.version"]
    assert torch == Finding(
        "torch.version",
        "warning",
        "torch is 2.11.0, TensorRT-LLM 1.2 was built for >=2.9.0a0,<=2.9.1",
        "Install torch>=2.9.0a0,<=2.9.1.",
    )


def test_a_torch_for_another_cuda() -> None:
    found = check_engine_packages({**GOOD, "torch": "2.9.1+cu128"}, "3.12.3", "580.1", True, False)
    assert [(f.id, f.level, f.found) for f in found if f.level != "ok"] == [
        (
            "torch.cuda",
            "warning",
            "torch 2.9.1+cu128 is built for CUDA 12, TensorRT-LLM 1.2 for 13",
        )
    ]


def test_a_missing_companion_is_an_error() -> None:
    assert levels({**GOOD, "transformers": None})["transformers.version"] == "error"


def test_an_old_driver_is_an_error_and_names_the_one_wanted() -> None:
    found = check_engine_packages({**GOOD}, "3.12.3", "535.129.03", True, False)
    (driver,) = [finding for finding in found if finding.id == "tensorrt_llm.driver"]
    assert driver == Finding(
        "tensorrt_llm.driver",
        "error",
        "driver 535.129.03 is too old: TensorRT-LLM 1.2 is built with CUDA 13, which wants 580 "
        "or later",
        "Install driver 580 or later, or CUDA's forward-compatibility package.",
    )
    assert (
        levels({**GOOD, "tensorrt-llm": "1.0.0"}, driver="535.129.03")["tensorrt_llm.driver"]
        == "ok"
    )


def test_a_python_without_wheels_is_a_warning() -> None:
    assert levels({**GOOD}, python="3.11.7")["tensorrt_llm.python"] == "warning"
    assert "tensorrt_llm.python" not in levels({**GOOD}, python="3.10.12")


def test_a_line_nobody_knows_is_a_warning() -> None:
    assert levels({**GOOD, "tensorrt-llm": "2.0.0"}) == {"tensorrt_llm.version": "warning"}
    assert levels({**GOOD, "tensorrt-llm": "nonsense"}) == {"tensorrt_llm.version": "warning"}


def test_what_the_table_does_not_know_is_a_warning() -> None:
    found = levels({**GOOD, "tensorrt-llm": "1.3.0rc20"})
    assert found["torch.version"] == "warning"
    assert found["tensorrt_llm.v2-manager"] == "info"


def test_events_of_the_host_tier_crash_older_versions() -> None:
    assert levels({**GOOD}, has_host_tier=True)["tensorrt_llm.host-tier-events"] == "warning"
    newer = {**GOOD, "tensorrt-llm": "1.3.0rc6"}
    assert "tensorrt_llm.host-tier-events" not in levels(newer, has_host_tier=True)


@pytest.mark.parametrize(("is_wanted", "level"), [(True, "error"), (False, "info")])
def test_without_tensorrt_llm(is_wanted: bool, level: str) -> None:
    (found,) = check_engine_packages({}, "3.12.3", None, is_wanted, False)
    assert (found.id, found.level) == ("tensorrt_llm.version", level)


def test_every_line_names_a_known_cuda() -> None:
    assert {line.cuda for line in LINES} <= CUDA_TO_DRIVER.keys()
    assert [line_of(f"{line.name}.0") for line in LINES] == list(LINES)


def test_requirements_of_this_product() -> None:
    requirements = ["ray[serve]==2.60.0", "rich>=13", "httpx>=0.27; extra == 'dev'"]
    wrong = check_requirements(requirements, {"ray": "2.59.0", "rich": None})
    assert (wrong.level, wrong.found) == (
        "error",
        "ray is 2.59.0, wanted ==2.60.0, rich is missing",
    )
    right = check_requirements(requirements, {"ray": "2.60.0", "rich": "15.0.0"})
    assert right == Finding("python.packages", "ok", "all 2 packages are as required")


def test_this_environment_names_what_it_requires() -> None:
    requirements = observe.own_requirements()
    assert "ray[serve]==2.60.0" in requirements
    assert observe.installed_versions(["ray", "no-such-package"]) == {
        "ray": "2.60.0",
        "no-such-package": None,
    }


@pytest.mark.parametrize(
    ("version", "level"),
    [("3.9.1", "error"), ("3.10.0", "ok"), ("3.13.9", "ok"), ("3.14.0", "error")],
)
def test_python(version: str, level: str) -> None:
    assert check_python(version).level == level
