"""TensorRT-LLM's cache events as its documentation shows them, in short notation, for tests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from serve_app.executors.trtllm_block_key import block_key

WINDOW = 256


class Log:
    """Writes events of one rank in the schema of 1.2 (`is_new` False) or of 1.3 and later."""

    def __init__(self, *, is_new: bool, window: int = WINDOW, dp_rank: int | None = None) -> None:
        self._is_new = is_new
        self._window = window
        self._dp_rank = dp_rank
        self._ids = itertools.count()

    def skip(self, num_events: int) -> None:
        """Events that are never seen."""
        for _ in range(num_events):
            next(self._ids)

    def created(self, *levels: int, window: int | None = None) -> dict[str, Any]:
        data = {"type": "created", "num_blocks_per_cache_level": list(levels)}
        return self._event(data, window)

    def stored(
        self,
        parent: int | str | None,
        *blocks: Sequence[int],
        names: Sequence[int | str] = (),
        priority: int = 35,
        level: int = 0,
        salt: str | None = None,
        window: int | None = None,
        extra_id: int = 0,
        mm_keys: Sequence[Any] = (),
    ) -> dict[str, Any]:
        """`names` are the engine's hashes; without them, those of no salt and no adapter."""
        found = names or named(parent, *blocks)
        written = []
        for name, tokens in zip(found, blocks, strict=True):
            block: dict[str, Any] = {
                "type": "stored_block",
                "block_hash": name,
                "tokens": [
                    {"type": "unique_token", "token_id": token, "token_extra_id": extra_id}
                    for token in tokens
                ],
                "cache_level": level,
                "priority": priority,
                "mm_keys": list(mm_keys),
            }
            if self._is_new:
                block["cache_salt"] = salt
            written.append(block)
        return self._event({"type": "stored", "parent_hash": parent, "blocks": written}, window)

    def removed(self, *names: int | str, window: int | None = None) -> dict[str, Any]:
        return self._event({"type": "removed", "block_hashes": list(names)}, window)

    def updated(
        self,
        name: int | str,
        *,
        level: tuple[int, int] | None = None,
        priority: tuple[int, int] | None = None,
    ) -> dict[str, Any]:
        """(old, new)."""
        data = {
            "type": "updated",
            "block_hash": name,
            "cache_level": _diff(level),
            "priority": _diff(priority),
        }
        return self._event(data, None)

    def _event(self, data: dict[str, Any], window: int | None) -> dict[str, Any]:
        event: dict[str, Any] = {
            "event_id": next(self._ids),
            "data": data,
            "window_size": window or self._window,
        }
        if self._dp_rank is not None:
            event["attention_dp_rank"] = self._dp_rank
        if self._is_new:
            event["hash_algo"] = "v1_block_key"
        return event


def named(
    parent: int | str | None,
    *blocks: Sequence[int],
    salt_id: int | None = None,
    lora_id: int | None = None,
) -> list[int]:
    """The engine's hashes of consecutive blocks."""
    names: list[int] = []
    before = parent if isinstance(parent, int) else 0
    for tokens in blocks:
        before = block_key(tokens, before, salt_id, lora_id)
        names.append(before)
    return names


def _diff(change: tuple[int, int] | None) -> dict[str, Any] | None:
    if change is None:
        return None
    return {"type": "event_diff", "new_value": change[1], "old_value": change[0]}
