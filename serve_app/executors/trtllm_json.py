"""TensorRT-LLM's cache events as Python dicts -> plain structs. Knows both schemas, no state.

1.2 writes neither `cache_salt` nor `hash_algo`; attention data parallelism adds
`attention_dp_rank`, the V2 cache manager `layer_group_id` and, with one algorithm, hashes as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from controllers.errors import EventError
from serve_app.executors.trtllm_requests import NOT_IN_EVENT, Unknown
from serve_app.executors.trtllm_tree import EngineHash

MEDIUM_BY_LEVEL = ("gpu", "host", "disk")


@dataclass(frozen=True, slots=True)
class RawBlock:
    """`tokens` None: they cannot be expressed as token ids (images, prompt tuning)."""

    engine_hash: EngineHash
    tokens: tuple[int, ...] | None
    medium: str
    retention_priority: int
    salt: str | None | Unknown


@dataclass(frozen=True, slots=True)
class RawCreated:
    num_blocks: dict[str, int]


@dataclass(frozen=True, slots=True)
class RawStored:
    parent: EngineHash | None
    blocks: tuple[RawBlock, ...]


@dataclass(frozen=True, slots=True)
class RawRemoved:
    hashes: tuple[EngineHash, ...]


@dataclass(frozen=True, slots=True)
class RawUpdated:
    engine_hash: EngineHash
    medium: str | None
    retention_priority: int | None


RawData: TypeAlias = RawCreated | RawStored | RawRemoved | RawUpdated


@dataclass(frozen=True, slots=True)
class Envelope:
    """`window`: attention window in tokens, and the V2 manager's layer group (negative, so that
    the largest pair is the first group of the largest window)."""

    event_id: int
    window: tuple[int, int]
    data: RawData


def dp_rank_of(event: Mapping[str, Any]) -> int:
    """Which rank's numbering and tree an event belongs to. Raises EventError."""
    rank = event.get("attention_dp_rank") if isinstance(event, Mapping) else event
    if rank is not None and (not isinstance(rank, int) or rank < 0):
        raise EventError(f"cache event of no rank: {str(event)[:200]}")
    return rank or 0


def parse(event: Mapping[str, Any]) -> Envelope:
    """Raises EventError for what neither schema has."""
    try:
        window = (int(event.get("window_size") or 0), -int(event.get("layer_group_id") or 0))
        event_id = int(event["event_id"])
        if not 0 <= event_id < 2**63:
            raise ValueError(f"event id {event_id}")
        return Envelope(event_id, window, _data(event["data"]))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise EventError(f"cache event cannot be read ({error!r}): {str(event)[:200]}") from error


def _data(data: Mapping[str, Any]) -> RawData:
    kind = data["type"]
    if kind == "stored":
        parent = data["parent_hash"]
        return RawStored(
            None if parent is None else _hash(parent), tuple(map(_block, data["blocks"]))
        )
    if kind == "removed":
        return RawRemoved(tuple(map(_hash, data["block_hashes"])))
    if kind == "updated":
        level, priority = _new(data["cache_level"]), _new(data["priority"])
        medium = None if level is None else _medium(level)
        return RawUpdated(_hash(data["block_hash"]), medium, priority)
    if kind == "created":
        levels = data["num_blocks_per_cache_level"]
        return RawCreated(dict(zip(MEDIUM_BY_LEVEL, map(int, levels), strict=False)))
    raise ValueError(f"type {kind!r}")


def _new(diff: Mapping[str, Any] | None) -> int | None:
    return None if diff is None else int(diff["new_value"])


def _hash(value: object) -> EngineHash:
    if not isinstance(value, (int, str)):
        raise ValueError(f"block hash {value!r}")
    return value


def _medium(level: int) -> str:
    if level < 0:
        raise ValueError(f"cache level {level}")
    return MEDIUM_BY_LEVEL[level]


def _block(block: Mapping[str, Any]) -> RawBlock:
    return RawBlock(
        engine_hash=_hash(block["block_hash"]),
        tokens=_tokens(block),
        medium=_medium(block["cache_level"]),
        retention_priority=int(block["priority"]),
        salt=block.get("cache_salt", NOT_IN_EVENT),
    )


def _tokens(block: Mapping[str, Any]) -> tuple[int, ...] | None:
    tokens = block["tokens"]
    if block.get("mm_keys") or any(token.get("token_extra_id") for token in tokens):
        return None
    ids = tuple(token["token_id"] for token in tokens)
    is_text = bool(ids) and all(type(token) is int and 0 <= token < 2**32 for token in ids)
    return ids if is_text else None
