"""Environment variables that hurt a fleet: NCCL, CUDA, Ray, proxies. Pure: a mapping in.

Values that may be secrets are never repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from infra.doctor.finding import Finding, Level

Variables = Mapping[str, str]

OFF = {"", "0", "false", "no"}
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")


class Harm(NamedTuple):
    """A variable that hurts when it has one of `values` (None: any that is not off)."""

    name: str
    values: frozenset[str] | None
    level: Level
    why: str


HARMS = (
    Harm("NCCL_P2P_DISABLE", None, "warning", "GPUs of one replica copy through main memory"),
    Harm("NCCL_SHM_DISABLE", None, "warning", "processes of one node talk through the network"),
    Harm("NCCL_IB_DISABLE", None, "warning", "nodes talk through TCP instead of InfiniBand"),
    Harm("NCCL_P2P_LEVEL", frozenset({"LOC", "0"}), "warning", "GPUs have no peer access"),
    Harm("NCCL_NVLS_ENABLE", frozenset({"0"}), "info", "all-reduce does without NVLink SHARP"),
    Harm("NCCL_DEBUG", frozenset({"INFO", "TRACE"}), "info", "NCCL writes a line per operation"),
    Harm("CUDA_LAUNCH_BLOCKING", None, "warning", "every kernel is waited for"),
    Harm("PYTORCH_NO_CUDA_MEMORY_CACHING", None, "warning", "every tensor is allocated anew"),
)


def check_gpu_variables(variables: Variables, wants_gpu: bool) -> list[Finding]:
    """NCCL's and CUDA's."""
    found = [_harm(harm, variables[harm.name]) for harm in HARMS if _hurts(harm, variables)]
    hidden = variables.get("CUDA_VISIBLE_DEVICES", "unset").strip() in {"", "-1", "NoDevFiles"}
    if hidden and wants_gpu:
        text = "CUDA_VISIBLE_DEVICES hides every GPU, and the settings want one"
        found.append(Finding("env.cuda", "error", text, "Unset CUDA_VISIBLE_DEVICES."))
    return found or [Finding("env.gpu", "ok", "no NCCL or CUDA variable that hurts")]


def _hurts(harm: Harm, variables: Variables) -> bool:
    value = variables.get(harm.name)
    if value is None:
        return False
    if harm.values is None:
        return value.strip().lower() not in OFF
    return value.strip().upper() in harm.values


def _harm(harm: Harm, value: str) -> Finding:
    text = f"{harm.name}={value}: {harm.why}"
    return Finding(f"env.{harm.name}", harm.level, text, f"Unset {harm.name}.")


def check_ray_variables(variables: Variables, own: Variables) -> list[Finding]:
    """`own` are the ones that `cachelane up` gives its cluster, whatever the environment has."""
    names = sorted(name for name in variables if name.startswith("RAY_") and variables[name])
    found = [_ray_variable(name, variables[name], own) for name in names if name not in RAY_AUTH]
    return found or [Finding("env.ray", "ok", "no RAY_ variable is set")]


def _ray_variable(name: str, value: str, own: Variables) -> Finding:
    if name not in own:
        text = f"{name} reaches every process of the cluster"
        return Finding(f"env.{name}", "info", text)
    if own[name] == value:
        return Finding(f"env.{name}", "ok", f"{name} is what `cachelane up` sets")
    text = f"{name}={value}: `cachelane up` sets {own[name]!r}, a cluster of yours gets {value!r}"
    return Finding(f"env.{name}", "warning", text, f"Unset {name}, or set it to that on each node.")


RAY_AUTH = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def check_ray_auth(variables: Variables, has_token_file: bool) -> Finding:
    """Whether `ray start` and its clients here agree. `has_token_file`: Ray's in the home folder.

    `cachelane up` makes a token of its own and is not concerned; a cluster of yours is.
    """
    mode = variables.get("RAY_AUTH_MODE", "")
    has_token = has_token_file or any(variables.get(name) for name in RAY_AUTH[1:])
    if mode == "token" and not has_token:
        fix = "Set RAY_AUTH_TOKEN to the cluster's token, or RAY_AUTH_TOKEN_PATH to its file."
        return Finding("ray.auth", "error", "RAY_AUTH_MODE is token, and there is no token", fix)
    if mode == "disabled":
        also = ", although there is a token" if has_token else ""
        fix = "Set RAY_AUTH_MODE to token on every node: replicas take pickled calls from anybody."
        return Finding("ray.auth", "warning", f"Ray runs without a token{also}", fix)
    if not mode and has_token:
        text = "there is a token and RAY_AUTH_MODE is not set: nodes without it are refused"
        fix = "Set RAY_AUTH_MODE to token, and give every node the same token."
        return Finding("ray.auth", "info", text, fix)
    text = f"RAY_AUTH_MODE is {mode}" if mode else "`cachelane up` makes a token for its cluster"
    return Finding("ray.auth", "ok", text)


def check_proxy(variables: Variables) -> Finding:
    """gRPC and HTTP clients ask a proxy for loopback and for other nodes too."""
    lower = {name.lower(): value for name, value in variables.items() if value}
    proxies = [name for name in PROXIES if name in lower]
    if not proxies:
        return Finding("env.proxy", "ok", "no proxy is set")
    hosts = {host.strip() for host in lower.get("no_proxy", "").split(",")}
    if hosts & LOOPBACK or "*" in hosts:
        text = f"{proxies[0]} is set, and no_proxy leaves out this machine"
        return Finding("env.proxy", "ok", text)
    text = f"{proxies[0]} is set, and no_proxy does not name this machine"
    fix = "Set no_proxy to 127.0.0.1,localhost,::1 and the addresses of your nodes."
    return Finding("env.proxy", "warning", text, fix)
