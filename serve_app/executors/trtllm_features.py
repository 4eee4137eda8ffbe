"""What an installed TensorRT-LLM can do, found out by looking at its classes, not at its version.

Knows the names that differ between 1.2, 1.3 and 1.4. Does not import the package: the classes are
given.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Collection
from enum import Enum
from typing import Any, get_args

import msgspec

from controllers.errors import SettingsError

MIN_VERSION = (1, 2)
SAFE_UPDATES = (1, 3, 0, 6)  # before, a block that moves or changes its priority breaks the events
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:\.?rc(\d+))?")


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """Names of fields and parameters that exist."""

    version: str
    llm_args: frozenset[str]
    kv_cache_fields: frozenset[str]
    scheduler_fields: frozenset[str]
    sampling_fields: frozenset[str]
    generate_params: frozenset[str]
    llm_methods: frozenset[str]
    queue_policies: frozenset[str] = frozenset()  # of the requests that wait

    @property
    def has_priority(self) -> bool:
        """Requests can say who goes first, and the queue can be told to listen."""
        return "priority" in self.generate_params and "priority" in self.queue_policies

    @property
    def has_retention(self) -> bool:
        return "kv_cache_retention_config" in self.generate_params

    @property
    def has_safe_updates(self) -> bool:
        """Otherwise an `updated` event makes the engine drop all that is read with it."""
        return version_tuple(self.version) >= SAFE_UPDATES

    @property
    def has_offload_priority(self) -> bool:
        """Whether `secondary_offload_min_priority` has an effect, as far as is known."""
        return version_tuple(self.version)[:2] >= (1, 3)


def probe(
    version: str,
    llm: type,
    llm_args: type,
    kv_cache_config: type,
    scheduler_config: type,
    sampling_params: type,
) -> Features:
    """Raises SettingsError for a version that is too old."""
    if version_tuple(version)[:2] < MIN_VERSION:
        raise SettingsError(f"TensorRT-LLM {version} is too old: 1.2 or newer is needed")
    return Features(
        version=version,
        llm_args=field_names(llm_args),
        kv_cache_fields=field_names(kv_cache_config),
        scheduler_fields=field_names(scheduler_config),
        sampling_fields=field_names(sampling_params),
        generate_params=parameter_names(llm.generate_async),  # type: ignore[attr-defined]
        llm_methods=frozenset(name for name in dir(llm) if callable(getattr(llm, name, None))),
        queue_policies=_choices(scheduler_config, "waiting_queue_policy"),
    )


def version_tuple(version: str) -> tuple[int, int, int, int]:
    """(major, minor, patch, candidate); a release comes after all of its candidates."""
    found = _VERSION.match(version)
    if found is None:
        return 0, 0, 0, 0
    major, minor, patch, candidate = found.groups()
    return int(major), int(minor), int(patch or 0), int(candidate) if candidate else 10_000


def field_names(cls: type) -> frozenset[str]:
    """Of a pydantic model or a dataclass."""
    if hasattr(cls, "model_fields"):
        return frozenset(cls.model_fields)
    if dataclasses.is_dataclass(cls):
        return frozenset(field.name for field in dataclasses.fields(cls) if field.init)
    return parameter_names(cls)


def parameter_names(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def _choices(model: type, field: str) -> frozenset[str]:
    """Values of a pydantic field that is an enum or a literal; none if it does not exist."""
    found = getattr(model, "model_fields", {}).get(field)
    hint = getattr(found, "annotation", None)
    if inspect.isclass(hint) and issubclass(hint, Enum):
        return frozenset(str(item.value) for item in hint)
    return frozenset(str(item) for item in get_args(hint))


def known(
    given: dict[str, Any], names: Collection[str], where: str
) -> tuple[dict[str, Any], list[str]]:
    """Arguments that the version has, and of the others their names as `where.name`."""
    kept = {name: value for name, value in given.items() if name in names}
    return kept, [f"{where}.{name}" for name in given if name not in names]
