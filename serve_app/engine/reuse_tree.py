"""Which block holds which prefix.

A tree with one root per salt, keyed by the tokens themselves: two prompts can share a block only
when every token before and in it is equal, whatever their hashes. Hashes are labels for events.
Knows neither who uses a block nor when one is dropped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from serve_app.engine.block import GPU, Block

TOKEN_BYTES = 4


class Match(NamedTuple):
    """The longest known prefix: whole blocks, then perhaps some tokens of one more block."""

    full: list[Block]
    partial: Block | None
    num_partial_tokens: int


class ReuseTree:
    """Blocks by content. Full blocks may have children; partial ones are always leaves."""

    def __init__(self, block_size: int) -> None:
        self._block_bytes = block_size * TOKEN_BYTES
        self._salt_to_root: dict[int, Block] = {}
        self._root_to_salt: dict[Block, int] = {}

    def match(self, salt: int, tokens: bytes) -> Match:
        """Longest prefix of `tokens` that is known under `salt`. O(blocks)."""
        node = self._salt_to_root.get(salt)
        full: list[Block] = []
        if node is None:
            return Match(full, None, 0)
        step = self._block_bytes
        for start in range(0, len(tokens) - step + 1, step):
            child = node.children.get(tokens[start : start + step])
            if child is None:
                break
            full.append(child)
            node = child
        start = len(full) * step
        partial, num_tokens = _closest_child(node, tokens[start : start + step])
        return Match(full, partial, num_tokens)

    def root(self, salt: int) -> Block:
        """The root of a salt, made when missing. It is no block of any pool."""
        root = self._salt_to_root.get(salt)
        if root is None:
            root = self._salt_to_root[salt] = Block(-1, GPU, -1)
            self._root_to_salt[root] = salt
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
        if not parent.children and parent in self._root_to_salt:  # salts come and go
            del self._salt_to_root[self._root_to_salt.pop(parent)]
        return removed

    def blocks(self) -> Iterator[Block]:
        """Every reusable block, parents before children."""
        pending = [
            child for root in self._salt_to_root.values() for child in root.children.values()
        ]
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


def _closest_child(node: Block, wanted: bytes) -> tuple[Block | None, int]:
    """The child that shares the most leading tokens with `wanted`, and how many."""
    keys = node.child_keys
    if not wanted or not keys:
        return None, 0
    at = bisect_left(keys, wanted)
    best, most = None, 0
    for key in keys[max(0, at - 1) : at + 1][::-1]:
        num_common = _common_tokens(key, wanted)
        if num_common > most:
            best, most = node.children[key], num_common
    return best, most


def _common_tokens(a: bytes, b: bytes) -> int:
    shortest = min(len(a), len(b))
    if a[:shortest] == b[:shortest]:
        return shortest // TOKEN_BYTES
    for at in range(0, shortest, TOKEN_BYTES):
        if a[at : at + TOKEN_BYTES] != b[at : at + TOKEN_BYTES]:
            return at // TOKEN_BYTES
    return shortest // TOKEN_BYTES
