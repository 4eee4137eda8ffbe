"""Cache changes -> the events that `get_kv_cache_events` returns, in the schema of the version.

1.2: no `hash_algo`, no `cache_salt`. From 1.3: both. With the V2 manager also `layer_group_id`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tensorrt_llm.double.tap import (
    Change,
    MovedChange,
    Node,
    PriorityChange,
    RemovedChange,
    StoredChange,
)

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class Schema:
    """`hash_algorithm` None: 1.2. `dp_rank` None: no attention DP."""

    hash_algorithm: str | None
    dp_rank: int | None
    is_v2: bool
    batches_removals: bool


class EventWriter:
    """Events of one rank; numbers them: 0, 1, 2 ... for all windows together."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._next_id = 0

    def created(self, window: int, num_blocks: list[int]) -> JsonObject:
        data = {"type": "created", "num_blocks_per_cache_level": num_blocks}
        return self._envelope(window, data)

    def events_of(self, changes: Iterable[Change]) -> list[JsonObject]:
        """What one iteration did."""
        pairs = _late(changes) if self._schema.batches_removals else _adjacent(changes)
        return [self._envelope(window, self._data(item)) for window, item in pairs]

    def _envelope(self, window: int, data: JsonObject) -> JsonObject:
        event: JsonObject = {"event_id": self._next_id, "data": data, "window_size": window}
        self._next_id += 1
        if self._schema.dp_rank is not None:
            event["attention_dp_rank"] = self._schema.dp_rank
        if self._schema.hash_algorithm is not None:
            event["hash_algo"] = self._schema.hash_algorithm
        if self._schema.is_v2:
            event["layer_group_id"] = 0
        return event

    def _data(self, item: Change | list[Node]) -> JsonObject:
        if isinstance(item, list):
            return {"type": "removed", "block_hashes": [node.name for node in item]}
        if isinstance(item, StoredChange):
            return self._stored(item)
        assert isinstance(item, (MovedChange, PriorityChange))
        level, priority = None, None
        if isinstance(item, MovedChange):
            level = _diff(item.old_level, item.level)
        else:
            priority = _diff(item.old, item.new)
        name = item.node.name
        return {"type": "updated", "block_hash": name, "cache_level": level, "priority": priority}

    def _stored(self, change: StoredChange) -> JsonObject:
        blocks = [
            self._stored_block(node, priority, change.request.cache_salt)
            for node, priority in zip(change.nodes, change.priorities, strict=True)
        ]
        parent = None if change.parent is None else change.parent.name
        return {"type": "stored", "parent_hash": parent, "blocks": blocks}

    def _stored_block(self, node: Node, priority: int, cache_salt: str | None) -> JsonObject:
        block: JsonObject = {
            "type": "stored_block",
            "block_hash": node.name,
            "tokens": [
                {"type": "unique_token", "token_id": token, "token_extra_id": 0}
                for token in node.tokens
            ],
            "cache_level": node.block.level,
            "priority": priority,
            "mm_keys": [],
        }
        if self._schema.hash_algorithm is not None:
            block["cache_salt"] = cache_salt
        return block


def _diff(old: int, new: int) -> JsonObject:
    return {"type": "event_diff", "new_value": new, "old_value": old}


Pair = tuple[int, Change | list[Node]]


def _adjacent(changes: Iterable[Change]) -> list[Pair]:
    """Removals share an event when nothing else lies between them."""
    pairs: list[Pair] = []
    for change in changes:
        if not isinstance(change, RemovedChange):
            pairs.append((change.window, change))
        elif pairs and pairs[-1][0] == change.window and isinstance(pairs[-1][1], list):
            pairs[-1][1].append(change.node)
        else:
            pairs.append((change.window, [change.node]))
    return pairs


def _late(changes: Iterable[Change]) -> list[Pair]:
    """A window's removals share an event, which comes before its next stored one or at the end."""
    pairs: list[Pair] = []
    window_to_nodes: dict[int, list[Node]] = {}
    for change in changes:
        if isinstance(change, RemovedChange):
            window_to_nodes.setdefault(change.window, []).append(change.node)
            continue
        if isinstance(change, StoredChange) and change.window in window_to_nodes:
            pairs.append((change.window, window_to_nodes.pop(change.window)))
        pairs.append((change.window, change))
    pairs.extend(window_to_nodes.items())
    return pairs
