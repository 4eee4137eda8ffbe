"""One YAML file plus environment variables -> frozen settings. The only reader of `os.environ`.

Owns defaults, types and error messages of every setting. Knows nothing of what the settings do.
Defaults run the laptop. `CACHELANE_<SECTION>__<KEY>=value` (two underscores) overrides a key;
the value is read as YAML, and as it stands where secrets are, below `kafka.security`. An unknown
key, a wrong type or a duplicate key is a SettingsError that names the path and the valid values.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import psutil
import yaml

from controllers.admission import AdmissionSettings
from controllers.autoscaling_settings import AutoscalingSettings
from controllers.errors import SettingsError, SetupError
from controllers.placement import PlacementSettings
from controllers.retention import RetentionPolicy
from controllers.service_tiers import TierPolicy
from infra.settings_deploy import DeploySettings
from infra.settings_errors import explain
from infra.settings_sections import (
    EventSettings,
    ExecutorSettings,
    FailoverSettings,
    GrpcSettings,
    HttpSettings,
    KafkaSettings,
    ModelSettings,
    Section,
    TenantSettings,
)
from infra.settings_trtllm import check_trtllm

LOOPBACK_NAMES = "127.0.0.1,localhost,::1"
ENV_PREFIX = "CACHELANE_"
# These reach the ingress as user_config: changing them restarts no replica.
POLICY_SECTIONS = (
    "routing",
    "retention",
    "tiers",
    "tenants",
    "failover",
    "admission",
    "autoscaling",
)


class Settings(Section, frozen=True):
    model: ModelSettings = ModelSettings()
    executor: ExecutorSettings = ExecutorSettings()
    kafka: KafkaSettings = KafkaSettings()
    events: EventSettings = EventSettings()
    routing: PlacementSettings = PlacementSettings()
    retention: RetentionPolicy = RetentionPolicy()
    tiers: TierPolicy = TierPolicy()
    failover: FailoverSettings = FailoverSettings()
    admission: AdmissionSettings = AdmissionSettings()
    autoscaling: AutoscalingSettings = AutoscalingSettings()
    tenants: dict[str, TenantSettings] = msgspec.field(
        default_factory=lambda: {"default": TenantSettings()}
    )
    http: HttpSettings = HttpSettings()
    grpc: GrpcSettings = GrpcSettings()
    deploy: DeploySettings = DeploySettings()


class _UniqueKeyLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice (YAML keeps the last one silently)."""


def _mapping(loader: _UniqueKeyLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[tuple[str, Any]] = set()
    for key_node, _ in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise SettingsError(f"a key must be a plain word (line {line})")
        if (key_node.tag, key_node.value) in seen:
            raise SettingsError(f"key {key_node.value!r} is given twice (line {line})")
        seen.add((key_node.tag, key_node.value))
    loader.flatten_mapping(node)
    return dict(loader.construct_pairs(node, deep=True))


_UniqueKeyLoader.add_constructor("tag:yaml.org,2002:map", _mapping)


def load_settings(path: str | Path | None = None, env: Mapping[str, str] | None = None) -> Settings:
    """Settings from a YAML file (None: defaults) and the environment. Raises SettingsError."""
    values = _read_file(Path(path)) if path is not None else {}
    _apply_env(values, os.environ if env is None else env)
    return to_settings(values)


def to_settings(values: Mapping[str, Any]) -> Settings:
    """Plain values, as YAML gives them, -> Settings. Raises SettingsError naming the path."""
    try:
        settings = msgspec.convert(dict(values), Settings)
    except msgspec.ValidationError as error:
        raise SettingsError(explain(error, Settings, values)) from error
    _check(settings)
    return settings


def with_environment(values: Mapping[str, Any]) -> Settings:
    """Plain values, with what this process's environment sets. Raises SettingsError."""
    own = msgspec.json.decode(msgspec.json.encode(values))  # the environment writes into them
    _apply_env(own, os.environ)
    return to_settings(own)


def to_values(settings: Settings) -> dict[str, Any]:
    """Inverse of to_settings: plain values for YAML or a Serve config."""
    values = msgspec.to_builtins(settings)
    assert isinstance(values, dict)
    return values


def environment(**extra: str) -> dict[str, str]:
    """The environment for a child process, with `extra` set."""
    env = {**os.environ, **extra}
    for name in ("no_proxy", "NO_PROXY"):  # gRPC and urllib would ask a proxy for loopback too
        env[name] = ",".join(filter(None, (env.get(name), LOOPBACK_NAMES)))
    return env


def own_variables() -> dict[str, str]:
    """This process's environment as it was given; for checks that look at it."""
    return dict(os.environ)


def environment_of(pid: int) -> dict[str, str]:
    """That of another process of ours, as of Ray's head with its token. Raises SetupError."""
    try:
        return psutil.Process(pid).environ()
    except psutil.Error as error:
        raise SetupError(
            f"cannot read the environment of process {pid}: run this as its user"
        ) from (error)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read settings file {path}: {error}") from error
    values = _parse_yaml(text, str(path))
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(f"{path} must hold sections, got {type(values).__name__}")
    # A section whose keys are all commented out is null.
    return {section: {} if content is None else content for section, content in values.items()}


def _parse_yaml(text: str, source: str) -> Any:
    try:
        return yaml.load(text, Loader=_UniqueKeyLoader)
    except SettingsError as error:
        raise SettingsError(f"{source}: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(f"{source} is not YAML: {error}") from error


def _apply_env(values: dict[str, Any], env: Mapping[str, str]) -> None:
    for name in sorted(env):
        if not name.startswith(ENV_PREFIX) or "__" not in name:
            continue
        *sections, key = name[len(ENV_PREFIX) :].lower().split("__")
        target = values
        for section in sections:
            nested = target.setdefault(section, {})
            if not isinstance(nested, dict):
                raise SettingsError(f"{name}: {section} is not a section")
            target = nested
        path = (*sections, key)
        target[key] = (env[name] or None) if _is_text(path) else _parse_yaml(env[name], name)


def _is_text(path: tuple[str, ...]) -> bool:
    """YAML would make another value of a password like 0123, yes or `a: b`."""
    return path[:-1] == ("kafka", "security") and path[-1] != "ssl_check_hostname"


def _check(settings: Settings) -> None:
    """Laws between settings."""
    batch = settings.executor
    if batch.max_batched_tokens <= batch.max_batch_size:
        raise SettingsError(
            f"executor.max_batched_tokens: {batch.max_batched_tokens} must be larger than "
            f"executor.max_batch_size, {batch.max_batch_size}"
        )
    if batch.kind == "trtllm":
        check_trtllm(batch.trtllm, batch.block_size, batch.num_gpus)
    if "default" not in settings.tenants:
        raise SettingsError(f"tenants: must have 'default', got {sorted(settings.tenants)}")
    types = settings.retention.request_types
    for name, tenant in settings.tenants.items():
        if tenant.default_request_type not in {None, *types}:
            raise SettingsError(
                f"tenants.{name}.default_request_type: {tenant.default_request_type!r} is none of "
                f"{sorted(types)}"
            )
    keys = [key for tenant in settings.tenants.values() for key in tenant.api_keys]
    if len(keys) != len(set(keys)):
        raise SettingsError("tenants: an API key is given twice")
    for section, names in (("retention", {*types}), ("tiers", {*settings.tiers.request_types})):
        if "" in names:
            raise SettingsError(f"{section}.request_types: '' is no name of a request type")
    _check_grpc(settings)
    settings.retention.check()
    settings.tiers.check()
    settings.autoscaling.check()
    longest_s = settings.http.request_timeout_s
    if longest_s is not None and longest_s > settings.autoscaling.drain_timeout_s:
        raise SettingsError(
            f"autoscaling.drain_timeout_s: {settings.autoscaling.drain_timeout_s} must be at least "
            f"http.request_timeout_s, {longest_s}: a stopping replica would cut its streams"
        )
    _check_finite("", to_values(settings))


def _check_grpc(settings: Settings) -> None:
    """Its clients and every ingress must agree on the port."""
    port = settings.grpc.port
    if settings.grpc.enabled and port in {0, settings.http.port}:
        why = "http.port too" if port else "any free port, which no client can know"
        raise SettingsError(f"grpc.port: {port} is {why}")


def _check_finite(path: str, value: Any) -> None:
    """YAML knows .inf; no setting means anything by it, and JSON cannot carry it."""
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingsError(f"{path}: {value} is not a finite number")
    if isinstance(value, dict):
        for key, item in value.items():
            _check_finite(f"{path}.{key}".removeprefix("."), item)
