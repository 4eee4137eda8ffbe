"""Who may have stored a block: the running and recent requests of one TensorRT-LLM engine.

Events name blocks by the engine's hashes. Ours need the salt, and labels need the request. Newer
versions write the salt into the event; the adapter is in none, and 1.2 has neither. What cannot be
told is not guessed.

Written to by the event loop, read by the thread that translates events.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from controllers.blocks import TokenArray
from serve_app.executors.trtllm_block_key import block_key

# Requests remembered after their end, until their last events have come: so many, and not more than
# their prompts' blocks allow.
MAX_ENDED = 4096
MAX_LABELS = 500_000


class Namespace(NamedTuple):
    """Blocks of different namespaces are never shared. `salt` is ours, 0: none."""

    salt: int = 0
    lora_id: int | None = None

    @property
    def has_hashes(self) -> bool:
        """An adapter's blocks have hashes of ours only if the salt tells them from the model's."""
        return self.lora_id is None or self.salt != 0


PLAIN = Namespace()


class Prompt(NamedTuple):
    """`token_ids` as in GenerateRequest."""

    token_ids: bytes
    namespace: Namespace = PLAIN


class Label(NamedTuple):
    tier: str = "default"
    tenant: str = "default"


NO_LABEL = Label()


class Unknown(NamedTuple):
    """Value of a field that an event does not have."""


NOT_IN_EVENT = Unknown()


@dataclass(slots=True)
class _Request:
    namespace: Namespace
    head: bytes  # first block, or the whole prompt if it is shorter
    labelled: list[int] = field(default_factory=list)


def salt_text(salt: int) -> str | None:
    """What the engine is told; hexadecimal, so that it can be read back from events."""
    return f"{salt:016x}" if salt else None


def salt_of_text(text: str | None) -> int | None:
    """Inverse of salt_text; None for a text of somebody else's."""
    if text is None:
        return 0
    try:
        return int(text, 16) if len(text) == 16 else None
    except ValueError:
        return None


class Requests:
    """`salt_id_of`: the engine's own number of a salt text, None where it is not to be had."""

    def __init__(
        self, block_size: int, salt_id_of: Callable[[str], int | None] = lambda text: None
    ) -> None:
        self.has_known_hashes = False  # the engine was seen to hash as `trtllm_block_key` does
        self._block_bytes = 4 * block_size
        self._salt_id_of = salt_id_of
        self._lock = threading.Lock()
        self._requests: dict[str, _Request] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._head_to_namespaces: dict[bytes, dict[Namespace, int]] = {}
        self._hash_to_label: dict[int, Label] = {}
        self._is_all_plain = True  # no request so far had a salt or an adapter

    def __len__(self) -> int:
        return len(self._requests)

    def add(
        self,
        key: str,
        tokens: TokenArray,
        hashes: Sequence[int],
        namespace: Namespace = PLAIN,
        label: Label = NO_LABEL,
    ) -> None:
        """`hashes` are ours, of the prompt's full blocks."""
        request = _Request(namespace, tokens.tobytes()[: self._block_bytes])
        with self._lock:
            self._is_all_plain = self._is_all_plain and namespace == PLAIN
            self._requests[key] = request
            counts = self._head_to_namespaces.setdefault(request.head, {})
            counts[namespace] = counts.get(namespace, 0) + 1
            for block_hash in hashes:
                if block_hash not in self._hash_to_label:
                    self._hash_to_label[block_hash] = label
                    request.labelled.append(block_hash)

    def end(self, key: str) -> None:
        """The request is remembered a while longer: its last blocks are stored at its end."""
        with self._lock:
            if key in self._requests:
                self._ended[key] = None
            while self._ended and (
                len(self._ended) > MAX_ENDED or len(self._hash_to_label) > MAX_LABELS
            ):
                self._forget(self._ended.popitem(last=False)[0])

    def label_of(self, block_hash: int) -> Label | None:
        """Of the request in whose prompt the block is."""
        return self._hash_to_label.get(block_hash)

    def namespace_of_root(
        self, tokens: Sequence[int], engine_hash: object, salt: str | None | Unknown
    ) -> Namespace | None:
        """Namespace of a first block; None when it cannot be told.

        `salt` is what the event says, NOT_IN_EVENT for versions whose events do not.
        """
        with self._lock:
            if self._is_all_plain and (salt is None or isinstance(salt, Unknown)):
                return PLAIN
            candidates = self._candidates(tokens)
        if not isinstance(salt, Unknown):
            return _by_salt(candidates, salt)
        if self.has_known_hashes and isinstance(engine_hash, int):
            candidates = {
                namespace
                for namespace in candidates | {PLAIN}
                if self._may_hash_to(namespace, tokens, engine_hash)
            }
        return candidates.pop() if len(candidates) == 1 else None

    def engine_hash_of(
        self, tokens: Sequence[int], parent: object, namespace: Namespace
    ) -> int | None:
        """How the engine names a block below the one that it names `parent` (None: the root); None
        where that is not known."""
        if not self.has_known_hashes:
            return None
        if isinstance(parent, int):
            return block_key(tokens, parent, None, namespace.lora_id)
        if parent is not None:
            return None
        text = salt_text(namespace.salt)
        salt_id = None if text is None else self._salt_id_of(text)
        if text is not None and salt_id is None:
            return None
        return block_key(tokens, 0, salt_id, namespace.lora_id)

    def _may_hash_to(self, namespace: Namespace, tokens: Sequence[int], engine_hash: int) -> bool:
        expected = self.engine_hash_of(tokens, None, namespace)
        return expected == engine_hash if expected is not None else block_key(tokens) != engine_hash

    def _candidates(self, tokens: Sequence[int]) -> set[Namespace]:
        """Namespaces of requests whose text begins with these tokens, as far as is known: the rest
        of a block that a short prompt does not fill was generated."""
        block = np.asarray(tokens, dtype="<u4").tobytes()
        found = set(self._head_to_namespaces.get(block, ()))
        for size in range(4, len(block), 4):
            found.update(self._head_to_namespaces.get(block[:size], ()))
        return found

    def _forget(self, key: str) -> None:
        request = self._requests.pop(key)
        counts = self._head_to_namespaces[request.head]
        counts[request.namespace] -= 1
        if not counts[request.namespace]:
            del counts[request.namespace]
        if not counts:
            del self._head_to_namespaces[request.head]
        for block_hash in request.labelled:
            self._hash_to_label.pop(block_hash, None)


def _by_salt(candidates: Iterable[Namespace], text: str | None) -> Namespace | None:
    salt = salt_of_text(text)
    if salt is None:
        return None
    found = {namespace for namespace in candidates if namespace.salt == salt}
    if not found:
        return Namespace(salt)
    return found.pop() if len(found) == 1 else None
