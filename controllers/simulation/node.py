"""One trace block in a simulated cache, or what a request has behind its last one."""

from __future__ import annotations

GPU, HOST = 0, 1
MEDIUMS = ("gpu", "host")
DEFAULT_PRIORITY = 35


class Node:
    """`key` None: no prompt can ask for it again, such as generated tokens.

    `queued_at`: the retention priority of the free queue that has it; -1: in use.
    """

    __slots__ = (
        "children",
        "duration_s",
        "expires_s",
        "key",
        "level",
        "num_blocks",
        "num_users",
        "parent",
        "queued_at",
        "retention_priority",
    )

    def __init__(self, key: int | None, num_blocks: int, parent: Node | None) -> None:
        self.key = key
        self.num_blocks = num_blocks
        self.parent = parent
        self.children: dict[Node, None] | None = None  # oldest first
        self.num_users = 0
        self.level = GPU
        self.retention_priority = DEFAULT_PRIORITY
        self.duration_s: float | None = None
        self.expires_s: float | None = None
        self.queued_at = -1
        if parent is not None:
            if parent.children is None:
                parent.children = {}
            parent.children[self] = None

    def leave_parent(self) -> None:
        if self.parent is not None and self.parent.children is not None:
            self.parent.children.pop(self, None)
        self.parent = None

    def is_behind(self, other: Node) -> bool:
        """Whether dropping `other` drops this one."""
        node: Node | None = self
        while node is not None and node is not other:
            node = node.parent
        return node is other
