"""Which block holds which prefix.

A tree with one root per namespace, keyed by the tokens themselves: two prompts can share a block
only when every token before and in it is equal, whatever their hashes. Hashes are labels for
events. Knows neither who uses a block nor when one is dropped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from serve_app.engine.block import GPU, Block
from serve_app.engine.token_keys import Namespace


class Match(NamedTuple):
    """The longest known prefix: whole blocks, then perhaps some tokens of one more block."""

    full: list[Block]
    partial: Block | None
    num_partial_tokens: int


class ReuseTree:
    """Blocks by content. Full blocks may have children; partial ones are always leaves."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._namespace_to_root: dict[Namespace, Block] = {}
        self._root_to_namespace: dict[Block, Namespace] = {}

    def match(self, namespace: Namespace, tokens: bytes) -> Match:
        """Longest prefix of the key `tokens` that is known in a namespace. O(blocks)."""
        node = self._namespace_to_root.get(namespace)
        full: list[Block] = []
        if node is None:
            return Match(full, None, 0)
        token_bytes = namespace.token_bytes
        step = self._block_size * token_bytes
        for start in range(0, len(tokens) - step + 1, step):
            child = node.children.get(tokens[start : start + step])
            if child is None:
                break
            full.append(child)
            node = child
        start = len(full) * step
        partial, num_tokens = _closest_child(node, tokens[start : start + step], token_bytes)
        return Match(full, partial, num_tokens)

    def find(self, namespace: Namespace, tokens: bytes) -> list[Block]:
        """The blocks that hold exactly `tokens`, parents first; none if not all of them is held."""
        full, partial, num_tokens = self.match(namespace, tokens)
        chain = full if partial is None else [*full, partial]
        is_exact = partial is None or len(partial.key) == num_tokens * namespace.token_bytes
        held = sum(len(block.key) for block in chain)
        return chain if is_exact and held == len(tokens) else []

    def root(self, namespace: Namespace) -> Block:
        """The root of a namespace, made when missing. It is no block of any pool."""
        root = self._namespace_to_root.get(namespace)
        if root is None:
            root = self._namespace_to_root[namespace] = Block(-1, GPU, -1)
            self._root_to_namespace[root] = namespace
        return root

    def detach(self, block: Block) -> list[tuple[Block, int]]:
        """Takes a block and all that follows it out of the tree.

        Returns (block, its former hash), children before parents: without its parent no
        descendant could be reached again.
        """
        removed = []
        for node in _post_order(block):
            assert node.block_hash is not None
            parent = node.parent
            removed.append((node, node.block_hash))
            node.leave_parent()
        assert parent is not None
        if not parent.children and parent in self._root_to_namespace:  # salts come and go
            del self._namespace_to_root[self._root_to_namespace.pop(parent)]
        return removed

    def blocks(self) -> Iterator[Block]:
        """Every reusable block, parents before children."""
        roots = self._namespace_to_root.values()
        pending = [child for root in roots for child in root.children.values()]
        while pending:
            block = pending.pop()
            yield block
            pending.extend(block.children.values())


def _post_order(block: Block) -> list[Block]:
    ordered, pending = [], [block]
    while pending:
        node = pending.pop()
        ordered.append(node)
        pending.extend(node.children.values())
    ordered.reverse()
    return ordered


def _closest_child(node: Block, wanted: bytes, token_bytes: int) -> tuple[Block | None, int]:
    """The child that shares the most leading tokens with `wanted`, and how many."""
    keys = node.child_keys
    if not wanted or not keys:
        return None, 0
    at = bisect_left(keys, wanted)
    best, most = None, 0
    for key in keys[max(0, at - 1) : at + 1][::-1]:
        num_common = _common_tokens(key, wanted, token_bytes)
        if num_common > most:
            best, most = node.children[key], num_common
    return best, most


def _common_tokens(a: bytes, b: bytes, token_bytes: int) -> int:
    shortest = min(len(a), len(b))
    if a[:shortest] == b[:shortest]:
        return shortest // token_bytes
    for at in range(0, shortest, token_bytes):
        if a[at : at + token_bytes] != b[at : at + token_bytes]:
            return at // token_bytes
    return shortest // token_bytes
