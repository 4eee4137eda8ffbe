"""Makes the computed tokens of a sequence reusable, and tells so.

Owns the walk from a sequence's blocks to the reuse tree and the stored events. Knows neither free
blocks nor who may reuse what.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from controllers.blocks import as_token_array, block_hash, block_hashes
from controllers.events import Stored, hex_of, hexes_of
from serve_app.engine.block import Block
from serve_app.engine.event_sink import EventSink
from serve_app.engine.reuse_tree import ReuseTree
from serve_app.engine.sequence import Sequence
from serve_app.engine.token_keys import TOKEN_BYTES, Namespace


class PrefixStore:
    """One for a cache."""

    def __init__(self, tree: ReuseTree, events: EventSink, block_size: int) -> None:
        self._tree = tree
        self._events = events
        self._block_size = block_size

    def store(self, seq: Sequence, num_tokens: int) -> None:
        """Puts the sequence's first `num_tokens` tokens into the tree, as far as they are new.

        Nothing when a block that the sequence has no more is missing in between: what follows
        could not be reached.
        """
        index = self._first_unstored(seq)
        ends = self._ends(index, num_tokens)
        if not ends:
            return
        parent = seq.blocks[index - 1] if index else self._tree.root(seq.namespace)
        keys = [seq.key(self._block_start(end), end) for end in ends]
        parent, num_known = _descend(parent, keys)
        if index + num_known < seq.num_detached:
            return
        fresh = seq.blocks[index + num_known : index + len(keys)]
        if fresh:
            self._insert(seq, parent, keys[num_known:], fresh)
        seq.num_stored_blocks = index + len(keys)

    def is_storable(self, seq: Sequence) -> bool:
        """Whether the blocks that the sequence has no more can still be reached."""
        num_tokens = seq.num_detached * self._block_size
        return len(self._tree.find(seq.namespace, seq.key(0, num_tokens))) == seq.num_detached

    def _ends(self, index: int, num_tokens: int) -> list[int]:
        """Where blocks `index` ... end, the last of them perhaps within a block."""
        ends = [*range((index + 1) * self._block_size, num_tokens + 1, self._block_size)]
        if num_tokens % self._block_size and num_tokens > index * self._block_size:
            ends.append(num_tokens)
        return ends

    def _block_start(self, end: int) -> int:
        return (end - 1) // self._block_size * self._block_size

    def _first_unstored(self, seq: Sequence) -> int:
        """Where to go on: after the last own block that is in the tree, else from the root.

        A duplicate of another sequence's block is not in the tree, and an own one may have been
        dropped with an ancestor.
        """
        index = seq.num_stored_blocks
        is_known = index > seq.num_detached and seq.blocks[index - 1].is_reusable
        return index if is_known else 0

    def _insert(self, seq: Sequence, parent: Block, keys: Seq[bytes], blocks: Seq[Block]) -> None:
        event_parent = None if parent.block_hash is None else hex_of(parent.block_hash)
        hashes = self._hashes(seq.namespace, parent.block_hash, keys)
        for key, key_hash, block in zip(keys, hashes, blocks, strict=True):
            parent.add_child(key, key_hash, block)
            parent = block
        self._events.stored(
            Stored(
                parent=event_parent,
                hashes=hexes_of(hashes),
                num_tokens=[len(key) // seq.namespace.token_bytes for key in keys],
                retention_priority=[block.retention_priority for block in blocks],
                tier=seq.request.tier,
                tenant=seq.request.tenant,
            )
        )

    def _hashes(self, namespace: Namespace, parent: int | None, keys: Seq[bytes]) -> list[int]:
        seed = namespace.hash_seed
        block_words = self._block_size * namespace.token_bytes // TOKEN_BYTES
        hashes = block_hashes(as_token_array(b"".join(keys)), block_words, seed, parent)
        if len(hashes) < len(keys):  # the last one is partial
            before = hashes[-1] if hashes else parent
            hashes.append(block_hash(before, as_token_array(keys[-1]), seed))
        return hashes


def _descend(node: Block, keys: Seq[bytes]) -> tuple[Block, int]:
    """Follows keys as far as they are known; the last node, and how many were."""
    for depth, key in enumerate(keys):
        child = node.children.get(key)
        if child is None:
            return node, depth
        node = child
    return node, len(keys)
