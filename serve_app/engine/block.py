"""One KV block: an identity, a place in a medium, and (when reusable) its node in the reuse tree.

Knows no policy. A block keeps its id for ever, while its storage (`level`, `slot`) moves between
mediums; block tables hold slots, tests and logs speak of ids.
"""

from __future__ import annotations

from bisect import bisect_left, insort

GPU, HOST = 0, 1
MEDIUM_OF_LEVEL = ("gpu", "host")
DEFAULT_RETENTION_PRIORITY = 35


class Block:
    """`parent` None: holds nothing that can be reused (its tokens are known to its owner only)."""

    __slots__ = (
        "block_hash",
        "block_id",
        "child_keys",
        "children",
        "duration_s",
        "expires_at",
        "key",
        "level",
        "parent",
        "queue",
        "ref_count",
        "retention_priority",
        "slot",
    )

    def __init__(self, block_id: int, level: int, slot: int) -> None:
        self.block_id = block_id
        self.level = level
        self.slot = slot
        self.ref_count = 0
        self.retention_priority = DEFAULT_RETENTION_PRIORITY
        self.duration_s: float | None = None
        self.expires_at: float | None = None
        self.queue: int | None = None  # its free queue; None: in use
        self.parent: Block | None = None
        self.key = b""  # its tokens, as `token_keys` compares them
        self.block_hash: int | None = None
        self.children: dict[bytes, Block] = {}
        self.child_keys: list[bytes] = []  # sorted: the best partial match is a neighbour

    @property
    def is_reusable(self) -> bool:
        return self.parent is not None

    def use(self, retention_priority: int | None, duration_s: float | None) -> None:
        """One more user. A priority of None changes nothing; a duration of None means none."""
        self.ref_count += 1
        self.duration_s = duration_s
        if retention_priority is not None:
            self.retention_priority = retention_priority

    def add_child(self, key: bytes, block_hash: int, child: Block) -> None:
        child.parent, child.key, child.block_hash = self, key, block_hash
        self.children[key] = child
        insort(self.child_keys, key)

    def leave_parent(self) -> None:
        """Forgets content and place in the tree. Its children must be gone before."""
        parent = self.parent
        assert parent is not None
        assert not self.children
        del parent.children[self.key]
        del parent.child_keys[bisect_left(parent.child_keys, self.key)]
        self.parent, self.key, self.block_hash = None, b"", None

    def __repr__(self) -> str:
        place = f"{MEDIUM_OF_LEVEL[self.level]}:{self.slot}"
        return f"Block({self.block_id}, {place}, refs={self.ref_count}, {len(self.key)} key bytes)"
