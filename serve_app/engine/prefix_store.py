"""Makes the computed tokens of a sequence reusable, and tells so.

Owns the walk from a sequence's blocks to the reuse tree and the stored events. Knows neither free
blocks nor who may reuse what.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from controllers.blocks import as_token_array, block_hash, block_hashes
from controllers.events import Stored, hex_of, hexes_of
from serve_app.engine.block import Block
from serve_app.engine.event_buffer import EventBuffer
from serve_app.engine.reuse_tree import TOKEN_BYTES, ReuseTree
from serve_app.engine.sequence import Sequence


class PrefixStore:
    """One for a cache."""

    def __init__(self, tree: ReuseTree, events: EventBuffer, block_size: int) -> None:
        self._tree = tree
        self._events = events
        self._block_size = block_size

    def store(self, seq: Sequence, num_tokens: int) -> None:
        """Puts the sequence's first `num_tokens` tokens into the tree, as far as they are new."""
        index = self._first_unstored(seq)
        parent = seq.blocks[index - 1] if index else self._tree.root(seq.request.salt)
        ends = [*range((index + 1) * self._block_size, num_tokens + 1, self._block_size)]
        if num_tokens % self._block_size and num_tokens > index * self._block_size:
            ends.append(num_tokens)
        keys = [seq.token_bytes(self._block_start(end), end) for end in ends]
        num_known = 0
        for key in keys:
            child = parent.children.get(key)
            if child is None:
                break
            parent = child
            num_known += 1
        fresh = seq.blocks[index + num_known : index + len(keys)]
        if fresh:
            self._insert(seq, parent, keys[num_known:], fresh)
        seq.num_stored_blocks = index + len(keys)

    def _block_start(self, end: int) -> int:
        return (end - 1) // self._block_size * self._block_size

    def _first_unstored(self, seq: Sequence) -> int:
        """Where to go on: after the last own block that is in the tree, else from the root.

        A duplicate of another sequence's block is not in the tree, and an own one may have been
        dropped with an ancestor.
        """
        index = seq.num_stored_blocks
        is_known = index > 0 and seq.blocks[index - 1].is_reusable
        return index if is_known else 0

    def _insert(self, seq: Sequence, parent: Block, keys: Seq[bytes], blocks: Seq[Block]) -> None:
        event_parent = None if parent.block_hash is None else hex_of(parent.block_hash)
        hashes = self._hashes(seq.request.salt, parent.block_hash, keys)
        for key, key_hash, block in zip(keys, hashes, blocks, strict=True):
            parent.add_child(key, key_hash, block)
            parent = block
        self._events.stored(
            Stored(
                parent=event_parent,
                hashes=hexes_of(hashes),
                num_tokens=[len(key) // TOKEN_BYTES for key in keys],
                retention_priority=[block.retention_priority for block in blocks],
                tier=seq.request.tier,
                tenant=seq.request.tenant,
            )
        )

    def _hashes(self, salt: int, parent: int | None, keys: Seq[bytes]) -> list[int]:
        tokens = as_token_array(b"".join(keys))
        hashes = block_hashes(tokens, self._block_size, salt, parent)
        if len(hashes) < len(keys):  # the last one is partial
            before = hashes[-1] if hashes else parent
            hashes.append(block_hash(before, as_token_array(keys[-1]), salt))
        return hashes
