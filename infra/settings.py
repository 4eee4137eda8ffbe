"""One YAML file plus environment variables -> frozen settings. The only reader of `os.environ`.

Owns defaults, types and error messages of every setting. Knows nothing of what the settings do.
Defaults run the laptop. `CACHELANE_<SECTION>__<KEY>=value` (two underscores) overrides a key;
the value is read as YAML. An unknown key, a wrong type or a duplicate key is a SettingsError that
names the path and the valid values.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta

from controllers.errors import SettingsError
from controllers.placement import PlacementSettings
from controllers.retention import RetentionPolicy
from infra.settings_errors import explain

LOOPBACK_NAMES = "127.0.0.1,localhost,::1"
ENV_PREFIX = "CACHELANE_"

Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
NotEmpty = Annotated[str, Meta(min_length=1)]
Port = Annotated[int, Meta(ge=0, le=65535)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A section of the file."""


class ModelSettings(Section, frozen=True):
    # GGUF file, or for the scripted executor also a folder with tokenizer.json, whose tokenizer it
    # then uses. None: the default model, fetched once; none for the scripted executor.
    path: str | None = None
    name: str | None = None  # as clients say it; None: the model file's own name


class ScriptedSettings(Section, frozen=True):
    """The deterministic executor's pretended timing."""

    prefill_ms: Annotated[float, Meta(ge=0)] = 0.0  # fixed part of an iteration with new tokens
    prefill_ms_per_token: Annotated[float, Meta(ge=0)] = 0.0
    decode_ms: Annotated[float, Meta(ge=0)] = 0.0  # one iteration that only decodes


class ExecutorSettings(Section, frozen=True):
    kind: Literal["local", "scripted"] = "local"
    num_replicas: Positive = 2
    block_size: Positive = 32  # tokens
    num_gpu_blocks: Positive = 512  # the first medium; main memory when the engine runs on a CPU
    num_host_blocks: NonNegative = 0  # second medium; 0: off
    max_seq_len: Positive | None = None  # None: what the model and the cache allow
    max_batch_size: Positive = 16  # sequences that run together
    max_batched_tokens: Positive = 512  # tokens of one iteration
    max_waiting_requests: Positive = 1000  # at one replica's gate; more is refused with 503
    host_offload_min_retention_priority: Annotated[int, Meta(ge=0, le=100)] = 30
    num_threads: Positive = 1  # BLAS threads of one engine
    event_buffer_size: Positive = 65536  # events
    num_cpus: Annotated[float, Meta(ge=0)] = 0.0  # Ray resources of one replica
    num_gpus: Annotated[float, Meta(ge=0)] = 0.0
    scripted: ScriptedSettings = ScriptedSettings()


class KafkaSettings(Section, frozen=True):
    bootstrap_servers: str | None = None  # None: the embedded broker
    topic_prefix: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,100}$")] = "cachelane"
    num_partitions: Positive = 12
    replication_factor: Positive = 1
    events_retention_s: Seconds = 21600.0
    decisions_retention_s: Seconds = 86400.0
    bookings_retention_s: Seconds = 600.0
    max_record_bytes: Annotated[int, Meta(ge=10_000)] = 1_000_000
    security: dict[str, str | int | bool | None] = {}  # security_protocol, ssl_*, sasl_*: passed on


class EventSettings(Section, frozen=True):
    """How a replica publishes what its cache holds."""

    linger_s: Annotated[float, Meta(ge=0, le=0.02)] = 0.002  # after a first event, for more
    drain_interval_s: Annotated[float, Meta(gt=0, le=0.02)] = 0.005  # between two records at least
    max_events_per_record: Positive = 256
    load_interval_s: Seconds = 0.5
    snapshot_interval_s: Seconds = 60.0
    snapshot_after_blocks: Positive = 50_000  # blocks changed
    heartbeat_timeout_s: Seconds = 3.0  # a silent worker is stale after this
    ready_timeout_s: Seconds = 10.0  # an ingress serves after this even without every snapshot


class TenantSettings(Section, frozen=True):
    """`salt` None: shares blocks with other tenants without a salt."""

    api_keys: list[NotEmpty] = []
    salt: NotEmpty | None = None
    max_retention_priority: Annotated[int, Meta(ge=0, le=100)] = 100
    default_request_type: str | None = None


class HttpSettings(Section, frozen=True):
    host: str = "127.0.0.1"
    port: Port = 8000
    num_ingress: Positive = 1
    max_body_bytes: Positive = 8_000_000
    max_ongoing_requests: Positive = 1000  # of one ingress replica
    request_timeout_s: Seconds | None = None


class Settings(Section, frozen=True):
    model: ModelSettings = ModelSettings()
    executor: ExecutorSettings = ExecutorSettings()
    kafka: KafkaSettings = KafkaSettings()
    events: EventSettings = EventSettings()
    routing: PlacementSettings = PlacementSettings()
    retention: RetentionPolicy = RetentionPolicy()
    tenants: dict[str, TenantSettings] = msgspec.field(
        default_factory=lambda: {"default": TenantSettings()}
    )
    http: HttpSettings = HttpSettings()


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
        target[key] = _parse_yaml(env[name], name)


def _check(settings: Settings) -> None:
    """Laws between settings."""
    batch = settings.executor
    if batch.max_batched_tokens <= batch.max_batch_size:
        raise SettingsError(
            f"executor.max_batched_tokens: {batch.max_batched_tokens} must be larger than "
            f"executor.max_batch_size, {batch.max_batch_size}"
        )
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
    settings.retention.check()
    _check_finite("", to_values(settings))


def _check_finite(path: str, value: Any) -> None:
    """YAML knows .inf; no setting means anything by it, and JSON cannot carry it."""
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingsError(f"{path}: {value} is not a finite number")
    if isinstance(value, dict):
        for key, item in value.items():
            _check_finite(f"{path}.{key}".removeprefix("."), item)
