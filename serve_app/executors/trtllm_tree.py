"""Blocks of one TensorRT-LLM cache under both their names: the engine's hash and ours.

Owns parents, children and where a block lies. Knows no event format, and not why a block comes or
goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from serve_app.executors.trtllm_requests import NO_LABEL, Label

EngineHash: TypeAlias = int | str


class Node:
    """A block. `ours` None: it is resident but has no hash of ours, and neither have its children.

    `tokens` are kept of partial blocks only. `is_suspect`: it may have left without a word.
    `stored_at`: when the engine said last that it stored it.
    """

    __slots__ = (
        "children",
        "engine_hash",
        "is_suspect",
        "label",
        "medium",
        "num_tokens",
        "ours",
        "parent",
        "retention_priority",
        "stored_at",
        "tokens",
    )

    def __init__(
        self,
        engine_hash: EngineHash,
        parent: Node | None,
        *,
        ours: int | None,
        num_tokens: int,
        medium: str,
        retention_priority: int,
        tokens: tuple[int, ...] = (),
        label: Label = NO_LABEL,
        stored_at: float = 0.0,
    ) -> None:
        self.engine_hash = engine_hash
        self.parent = parent
        self.ours = ours
        self.num_tokens = num_tokens
        self.medium = medium
        self.retention_priority = retention_priority
        self.tokens = tokens
        self.label = label
        self.stored_at = stored_at
        self.is_suspect = False
        self.children: dict[EngineHash, Node] = {}


class BlockTree:
    """Every block once by the engine's hash, and once by ours if it has one."""

    def __init__(self) -> None:
        self._nodes: dict[EngineHash, Node] = {}
        self._ours_to_node: dict[int, Node] = {}
        self._roots: dict[EngineHash, Node] = {}
        self._partials: dict[Node | None, dict[EngineHash, Node]] = {}  # by parent
        self.num_by_medium: dict[str, int] = {}  # blocks with a hash of ours

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, engine_hash: EngineHash) -> Node | None:
        return self._nodes.get(engine_hash)

    def by_ours(self, block_hash: int) -> Node | None:
        return self._ours_to_node.get(block_hash)

    def add(self, node: Node) -> None:
        """A second block with the same hash of ours loses it: one name means one block."""
        if node.ours is not None and node.ours in self._ours_to_node:
            node.ours = None
        self._nodes[node.engine_hash] = node
        self._siblings(node.parent)[node.engine_hash] = node
        if node.tokens:
            self._partials.setdefault(node.parent, {})[node.engine_hash] = node
        if node.ours is not None:
            self._ours_to_node[node.ours] = node
            self._count(node.medium, 1)

    def partials_of(self, parent: Node | None) -> list[Node]:
        """Partial blocks below `parent`; None: the root."""
        return list(self._partials.get(parent, {}).values())

    def move(self, node: Node, medium: str) -> None:
        if node.ours is not None:
            self._count(node.medium, -1)
            self._count(medium, 1)
        node.medium = medium

    def drop(self, node: Node) -> list[int]:
        """Takes a block and all below it out; their hashes of ours, children first."""
        self._siblings(node.parent).pop(node.engine_hash, None)
        dropped: list[int] = []
        for current in reversed(list(_subtree(node))):
            del self._nodes[current.engine_hash]
            self._drop_partial(current)
            if current.ours is not None:
                dropped.append(current.ours)
                del self._ours_to_node[current.ours]
                self._count(current.medium, -1)
        return dropped

    def hide_all(self) -> None:
        """Every block loses its hash of ours."""
        for node in self._ours_to_node.values():
            node.ours = None
        self._ours_to_node.clear()
        self.num_by_medium.clear()

    def clear(self) -> None:
        self._nodes.clear()
        self._ours_to_node.clear()
        self._partials.clear()
        self._roots.clear()
        self.num_by_medium.clear()

    def suspect_leaves(self, parent: Node | None) -> None:
        """Blocks right below `parent` (None: the root) that have none below themselves."""
        for node in self._siblings(parent).values():
            node.is_suspect = node.is_suspect or not node.children

    def suspect_all(self) -> None:
        for node in self._nodes.values():
            node.is_suspect = True

    def suspects(self) -> list[Node]:
        """The longest known first; a snapshot."""
        return [node for node in self._nodes.values() if node.is_suspect]

    def _siblings(self, parent: Node | None) -> dict[EngineHash, Node]:
        return self._roots if parent is None else parent.children

    def _drop_partial(self, node: Node) -> None:
        siblings = self._partials.get(node.parent)
        if siblings is not None:
            siblings.pop(node.engine_hash, None)
            if not siblings:
                del self._partials[node.parent]

    def _count(self, medium: str, change: int) -> None:
        self.num_by_medium[medium] = self.num_by_medium.get(medium, 0) + change


def _subtree(top: Node) -> Iterator[Node]:
    """Parents before children."""
    pending = [top]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(node.children.values())
