"""Turns what our block manager says into what TensorRT-LLM's would have said.

Ours names every block that leaves the tree and every expiry. The real one is silent about
expiries, about a partial leaf that a request takes for itself and, in 1.3, about the descendants of
an evicted block. The tap stands where the engine expects its event buffer, knows the tree by our
hashes and keeps, until the flush, what will become events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from controllers.events import Stored
from serve_app.engine.block import Block
from serve_app.engine.sequence import Sequence
from tensorrt_llm.double.namer import Namer
from tensorrt_llm.double.requests import EngineRequest


@dataclass(eq=False)
class Node:
    """A block in the tree. `end`: position behind its last token. `name`: the engine's hash."""

    own_hash: int
    name: int | str
    parent: Node | None
    end: int
    tokens: list[int]
    block: Block
    chain: bytes | int

    @property
    def is_attached(self) -> bool:
        return self.block.block_hash == self.own_hash


@dataclass(frozen=True)
class StoredChange:
    parent: Node | None
    nodes: list[Node]
    priorities: list[int]
    request: EngineRequest
    window: int


@dataclass(frozen=True)
class RemovedChange:
    node: Node
    window: int


@dataclass(frozen=True)
class MovedChange:
    node: Node
    old_level: int
    level: int
    window: int


@dataclass(frozen=True)
class PriorityChange:
    node: Node
    old: int
    new: int
    window: int


Change: TypeAlias = StoredChange | RemovedChange | MovedChange | PriorityChange
LEVELS = {"gpu": 0, "host": 1}


class Tap:
    """Of one cache. `changes` is shared by all windows of a rank, so that their order is kept."""

    def __init__(
        self,
        changes: list[Change],
        namer: Namer,
        *,
        block_size: int,
        window: int,
        loses_descendants: bool,
        tells_priorities: bool,
    ) -> None:
        self.storing: Sequence | None = None  # whose blocks are being stored
        self.is_muted = False
        self._changes = changes
        self._namer = namer
        self._block_size = block_size
        self._window = window
        self._loses_descendants = loses_descendants
        self._tells_priorities = tells_priorities
        self._nodes: dict[int, Node] = {}

    def stored(self, event: Stored) -> None:
        seq = self.storing
        assert seq is not None
        request = seq.request
        assert isinstance(request, EngineRequest)
        before = parent = None if event.parent is None else self._nodes[int(event.parent, 16)]
        nodes = []
        for own_hash, num_tokens in zip(event.hashes, event.num_tokens, strict=True):
            parent = self._add(int(own_hash, 16), parent, num_tokens, seq, request)
            nodes.append(parent)
        priorities = list(event.retention_priority)
        self._changes.append(StoredChange(before, nodes, priorities, request, self._window))

    def removed(self, block_hash: int) -> None:
        node = self._nodes.pop(block_hash)
        is_descendant = node.parent is not None and not node.parent.is_attached
        if not (is_descendant and self._loses_descendants):
            self._changes.append(RemovedChange(node, self._window))

    def moved(self, block_hash: int, old_medium: str, medium: str) -> None:
        node = self._nodes[block_hash]
        change = MovedChange(node, LEVELS[old_medium], LEVELS[medium], self._window)
        self._changes.append(change)

    def reprioritised(self, block_hash: int, old: int, new: int) -> None:
        if self._tells_priorities and not self.is_muted:
            self._changes.append(PriorityChange(self._nodes[block_hash], old, new, self._window))

    def flush(self) -> None:
        """The rank flushes, for all its windows together."""

    @property
    def num_changes(self) -> int:
        return len(self._changes)

    def forget_private_leaf(self, seq: Sequence, since: int) -> None:
        """A partial leaf that `seq` took for itself, after `since` changes, was not told of."""
        index, num_partial = divmod(seq.num_cached, self._block_size)
        if not num_partial:
            return
        taken = seq.blocks[index]
        start = index * self._block_size
        tokens = list(seq.tokens[start : start + num_partial])
        for at in range(since, len(self._changes)):
            change = self._changes[at]
            if not isinstance(change, RemovedChange) or change.window != self._window:
                continue
            node = change.node
            if node.block is taken and node.tokens[:num_partial] == tokens:
                del self._changes[at]
                return

    def _add(
        self,
        own_hash: int,
        parent: Node | None,
        num_tokens: int,
        seq: Sequence,
        request: EngineRequest,
    ) -> Node:
        start = 0 if parent is None else parent.end
        tokens = list(seq.tokens[start : start + num_tokens])
        chain = self._namer.chain(tokens, None if parent is None else parent.chain, request)
        node = Node(
            own_hash=own_hash,
            name=self._namer.name(chain),
            parent=parent,
            end=start + num_tokens,
            tokens=tokens,
            block=seq.blocks[start // self._block_size],
            chain=chain,
        )
        self._nodes[own_hash] = node
        return node
