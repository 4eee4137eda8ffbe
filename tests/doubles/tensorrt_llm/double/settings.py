"""How the double behaves: version, sizes of the pretended model and GPU, timing, faults from birth.

Read from the environment first, so that a process that nobody else can reach is set up too:
`TRTLLM_DOUBLE_VERSION=1.3.0rc27`, `TRTLLM_DOUBLE='{"decode_ms": 2.0}'` (any field below).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from typing import Any

from tensorrt_llm.double.versions import Version

VERSION_VARIABLE = "TRTLLM_DOUBLE_VERSION"
SETTINGS_VARIABLE = "TRTLLM_DOUBLE"
SINGLE_PROCESS_VARIABLE = "TLLM_WORKER_USE_SINGLE_PROCESS"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`None` means: as the version does it."""

    version: str = "1.2.1"
    # The model.
    vocab_size: int = 259
    eos_id: int = 257
    eos_after: int | None = None  # generated tokens before the model ends by itself
    model_max_seq_len: int = 131072
    has_end_id_in_output: bool = True
    # The GPU: what is free after the weights.
    memory_blocks: int = 1024
    bytes_per_token: int = 1024  # of KV, all layers
    # Pretended time of an iteration.
    prefill_ms: float = 0.0
    prefill_ms_per_token: float = 0.0
    decode_ms: float = 0.0
    # How the event iterator ends: stop, queue_empty or index_error.
    iterator_end: str | None = None
    falsy_event_every: int = 0  # an empty item after so many events; 0: never
    # Faults from birth.
    fail_start: str | None = None  # the constructor raises RuntimeError with this text
    die_on: tuple[int, ...] = ()  # the engine dies when a prompt with these tokens would start
    hang_on: tuple[int, ...] = ()  # it stops for ever, silently
    slow_factor: float = 1.0
    has_impossible_stats: bool = False
    is_proxy: bool | None = None  # None: unless TLLM_WORKER_USE_SINGLE_PROCESS=1
    parsed: Version = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parsed", Version.parse(self.version))

    @property
    def has_worker_process(self) -> bool:
        """Between LLM and engine: errors reach those who wait only when there is none."""
        if self.is_proxy is not None:
            return self.is_proxy
        return os.environ.get(SINGLE_PROCESS_VARIABLE) != "1"


def from_environment() -> Settings:
    given: dict[str, Any] = json.loads(os.environ.get(SETTINGS_VARIABLE) or "{}")
    for name in ("die_on", "hang_on"):
        if name in given:
            given[name] = tuple(given[name])
    version = os.environ.get(VERSION_VARIABLE)
    return Settings(**({"version": version} | given if version else given))


class _Current:
    settings = from_environment()


def current() -> Settings:
    return _Current.settings


def configure(**changes: Any) -> Settings:
    """Changes from what the environment says; without arguments: exactly that."""
    _Current.settings = replace(from_environment(), **changes)
    return _Current.settings
