"""What requests show of a TensorRT-LLM cache, against what its events made us believe.

Owns doubt: which blocks are suspect, when one of them goes, and which are learned though nobody
told. Needed after a loss, and where the engine takes a block without a word. Knows no events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from serve_app.executors.trtllm_naming import Naming
from serve_app.executors.trtllm_requests import Prompt
from serve_app.executors.trtllm_tree import BlockTree, Node

PARTIAL_SURPLUS = 2
MAX_LEARNED = 256  # blocks from one request: hashing them as the engine does is slow


class Evidence:
    """`heal(node)` takes a block out, and all below it."""

    def __init__(self, tree: BlockTree, naming: Naming, heal: Callable[[Node], None]) -> None:
        self._tree = tree
        self._naming = naming
        self._heal = heal
        self.clear()

    def clear(self) -> None:
        """The cache is new: nothing is in doubt."""
        self._has_suspects = False
        self._has_holes = False  # since a loss: resident blocks may be missing in the tree
        self._surplus = PARTIAL_SURPLUS  # how much more than the capacity may be believed in

    def lost(self) -> None:
        """Whatever is believed now may have left in what was lost."""
        self._tree.suspect_all()
        self._has_suspects = len(self._tree) > 0
        self._has_holes = True
        self._surplus = 1

    def judge(self, hashes: Sequence[int], num_found: int, asked_at: float) -> None:
        """A request reused so many blocks of its prompt: suspects among them are cleared. Those
        behind are not there, unless they were stored after it was asked."""
        if not self._has_suspects:
            return
        for index, ours in enumerate(hashes):
            node = self._tree.by_ours(ours)
            if node is None or not node.is_suspect:
                continue
            if index < num_found:
                node.is_suspect = False
            elif node.stored_at < asked_at:
                self._heal(node)
                return

    def learn(
        self, hashes: Sequence[int], prompt: Prompt, now: float, adopt: Callable[[Node], None]
    ) -> None:
        """`hashes` were reused; `adopt` gets those that are missing. They may have left again while
        the request ran: they are suspect from the start."""
        if not self._has_holes:
            return
        parent, num_left = None, MAX_LEARNED
        for index, ours in enumerate(hashes):
            node = self._tree.by_ours(ours)
            if node is None:
                node = self._naming.node_of_prompt(prompt, index, ours, parent, now)
                if node is None or self._tree.get(node.engine_hash) is not None or not num_left:
                    return
                num_left -= 1
                node.is_suspect = self._has_suspects = True
                adopt(node)
            parent = node

    def part_reused(self, parent: Node | None) -> None:
        """A request reused a part of one of the leaves below `parent` (None: the root)."""
        self._tree.suspect_leaves(parent)
        self._has_suspects = True

    def drop_surplus(self, num_blocks: Mapping[str, int]) -> None:
        """More blocks than the cache holds: some of the suspects are not there. It is not known
        which, so there is more patience without a loss, when few of them are gone."""
        if not self._has_suspects:
            return
        for medium, capacity in num_blocks.items():
            limit = capacity * self._surplus
            if self._num(medium) <= limit:
                continue
            for node in self._tree.suspects():
                if self._num(medium) <= limit:
                    break
                if node.medium == medium and self._tree.get(node.engine_hash) is node:
                    self._heal(node)

    def _num(self, medium: str) -> int:
        return self._tree.num_by_medium.get(medium, 0)
