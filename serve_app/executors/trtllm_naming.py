"""A block as TensorRT-LLM tells it -> a node with our hash and the label of who stored it.

Knows when a block can have no hash of ours; does not know the tree.
"""

from __future__ import annotations

from controllers.blocks import as_token_array, block_hash
from controllers.promises import DEFAULT_RETENTION_PRIORITY
from serve_app.executors.trtllm_json import RawBlock
from serve_app.executors.trtllm_requests import NO_LABEL, Label, Prompt, Requests
from serve_app.executors.trtllm_tree import Node


class Naming:
    """Of one rank."""

    def __init__(self, block_size: int, requests: Requests) -> None:
        self._block_size = block_size
        self._requests = requests

    def node_of(self, raw: RawBlock, parent: Node | None, now: float) -> Node:
        """`parent` None: the root."""
        tokens = raw.tokens or ()
        ours = self._our_hash(raw, parent)
        return Node(
            raw.engine_hash,
            parent,
            ours=ours,
            num_tokens=len(tokens),
            medium=raw.medium,
            retention_priority=raw.retention_priority,
            tokens=tokens if len(tokens) < self._block_size else (),
            label=self._label(ours, parent),
            stored_at=now,
        )

    def node_of_prompt(
        self, prompt: Prompt, index: int, ours: int, parent: Node | None, now: float
    ) -> Node | None:
        """A block that a request found in the cache and that nobody told. Which retention priority
        it has is not known. None: nor is how the engine calls it."""
        tokens = as_token_array(prompt.token_ids)
        tokens = tokens[index * self._block_size : (index + 1) * self._block_size]
        parent_hash = None if parent is None else parent.engine_hash
        engine_hash = self._requests.engine_hash_of(tokens.tolist(), parent_hash, prompt.namespace)
        if engine_hash is None or not prompt.namespace.has_hashes:
            return None
        return Node(
            engine_hash,
            parent,
            ours=ours,
            num_tokens=self._block_size,
            medium="gpu",
            retention_priority=DEFAULT_RETENTION_PRIORITY,
            label=self._label(ours, parent),
            stored_at=now,
        )

    def _our_hash(self, raw: RawBlock, parent: Node | None) -> int | None:
        """None: it holds more than text, does not fit, hangs below such a block or below one that
        is not full, or nobody knows whose it is."""
        if raw.tokens is None or len(raw.tokens) > self._block_size:
            return None
        if parent is not None:
            if parent.ours is None or parent.num_tokens != self._block_size:
                return None
            return block_hash(parent.ours, as_token_array(raw.tokens))
        namespace = self._requests.namespace_of_root(raw.tokens, raw.engine_hash, raw.salt)
        if namespace is None or not namespace.has_hashes:
            return None
        return block_hash(None, as_token_array(raw.tokens), namespace.salt)

    def _label(self, ours: int | None, parent: Node | None) -> Label:
        """A generated block belongs to the request of the block before it."""
        label = None if ours is None else self._requests.label_of(ours)
        if label is not None:
            return label
        return NO_LABEL if parent is None else parent.label
