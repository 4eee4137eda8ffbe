"""Variables that hurt a fleet, and those that do not."""

from __future__ import annotations

import pytest

from infra.doctor.finding import Finding
from infra.doctor.variables import (
    check_gpu_variables,
    check_proxy,
    check_ray_auth,
    check_ray_variables,
)


@pytest.mark.parametrize(
    ("name", "value", "level"),
    [
        ("NCCL_P2P_DISABLE", "1", "warning"),
        ("NCCL_IB_DISABLE", "1", "warning"),
        ("NCCL_SHM_DISABLE", "true", "warning"),
        ("NCCL_P2P_LEVEL", "LOC", "warning"),
        ("NCCL_NVLS_ENABLE", "0", "info"),
        ("NCCL_DEBUG", "info", "info"),
        ("CUDA_LAUNCH_BLOCKING", "1", "warning"),
    ],
)
def test_a_variable_that_hurts(name: str, value: str, level: str) -> None:
    (found,) = check_gpu_variables({name: value}, wants_gpu=True)
    assert (found.id, found.level, found.fix) == (f"env.{name}", level, f"Unset {name}.")
    assert found.found.startswith(f"{name}={value}: ")


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"NCCL_P2P_DISABLE": "0"},
        {"NCCL_P2P_LEVEL": "NVL", "NCCL_DEBUG": "WARN", "NCCL_NVLS_ENABLE": "1"},
        {"CUDA_VISIBLE_DEVICES": "0,1"},
        {"CUDA_VISIBLE_DEVICES": "MIG-1"},
    ],
)
def test_variables_that_do_not(variables: dict[str, str]) -> None:
    assert check_gpu_variables(variables, wants_gpu=True) == [
        Finding("env.gpu", "ok", "no NCCL or CUDA variable that hurts")
    ]


@pytest.mark.parametrize("value", ["", "-1"])
def test_hidden_gpus_matter_where_one_is_wanted(value: str) -> None:
    variables = {"CUDA_VISIBLE_DEVICES": value}
    (found,) = check_gpu_variables(variables, wants_gpu=True)
    assert (found.id, found.level) == ("env.cuda", "error")
    assert check_gpu_variables(variables, wants_gpu=False)[0].level == "ok"


def test_ray_variables_that_clash_with_ours() -> None:
    own = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_ADDRESS": ""}
    variables = {
        "RAY_SERVE_ENABLE_HA_PROXY": "0",
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_AUTH_TOKEN": "secret",
        "RAY_ADDRESS": "",
        "PATH": "/bin",
    }
    found = check_ray_variables(variables, own)
    assert [(f.id, f.level) for f in found] == [
        ("env.RAY_SERVE_ENABLE_HA_PROXY", "warning"),
        ("env.RAY_memory_monitor_refresh_ms", "info"),
    ]
    assert "secret" not in repr(found)
    assert check_ray_variables({}, own) == [Finding("env.ray", "ok", "no RAY_ variable is set")]
    same = check_ray_variables({"RAY_SERVE_ENABLE_HA_PROXY": "1"}, own)
    assert [f.level for f in same] == ["ok"]


@pytest.mark.parametrize(
    ("variables", "has_file", "level"),
    [
        ({}, False, "ok"),
        ({}, True, "info"),
        ({"RAY_AUTH_MODE": "token"}, False, "error"),
        ({"RAY_AUTH_MODE": "token"}, True, "ok"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "secret"}, False, "ok"),
        ({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "secret"}, False, "warning"),
        ({"RAY_AUTH_MODE": "disabled"}, False, "warning"),
    ],
)
def test_how_ray_knows_its_own(variables: dict[str, str], has_file: bool, level: str) -> None:
    found = check_ray_auth(variables, has_file)
    assert found.level == level
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("variables", "level"),
    [
        ({}, "ok"),
        ({"http_proxy": ""}, "ok"),
        ({"HTTP_PROXY": "http://p:1"}, "warning"),
        ({"http_proxy": "http://p:1", "no_proxy": "example.com"}, "warning"),
        ({"https_proxy": "http://p:1", "NO_PROXY": "10.0.0.1, localhost"}, "ok"),
        ({"grpc_proxy": "http://p:1", "no_proxy": "*"}, "ok"),
    ],
)
def test_a_proxy_must_leave_out_this_machine(variables: dict[str, str], level: str) -> None:
    found = check_proxy(variables)
    assert found.level == level
    assert "p:1" not in found.found  # may hold a password
