"""The prefixes that requests asked for, as a tree of runs, and when each was last used.

Owns how runs split, merge and are forgotten. What
others keep about a run (`touch`, `grants`) is handed on when runs split or join. Knows no cache.

1. A run is blocks that have always been asked for together.
2. A hash names a whole prefix, so equal hashes at a place mean equal prefixes up to there.
3. A chain of runs that are all used often is joined into one, so that a path stays short.
4. A run is used when anything behind it is, so the least recently used one is a leaf.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from controllers.blocks import num_common_blocks
from controllers.grants import Grant
from controllers.survival import Survival, Touch

JOINED_FROM_USES = 5
HUB_FROM_KIDS = 8
CLEAR_VOTES = 2


class TouchedRun:
    """Consecutive blocks of a prefix. `grants`: by worker, what was promised for them last.
    `label`: what requests call it; the caller has them `vote`."""

    __slots__ = (
        "class_id", "grants", "hashes", "kids", "label", "last_used_s", "num_uses", "num_votes",
        "parent", "touch",
    )  # fmt: skip

    def __init__(self, hashes: list[int], parent: TouchedRun | None) -> None:
        self.hashes = hashes
        self.parent = parent
        self.kids: dict[int, TouchedRun] = {}
        self.num_uses = 0
        self.last_used_s = 0.0
        self.class_id = 0
        self.label = ""
        self.num_votes = 0
        self.touch: Touch | None = None
        self.grants: dict[str, Grant] = {}

    def vote(self, label: str, known: str | None = None) -> str | None:
        """`label`: what this use is called. `known`: what the run that it continues clearly is, if
        that says anything; a new run is that. Returns what continues this one clearly is.

        By Boyer and Moore's count, so a wrong label here and there does not matter.
        """
        if not self.num_votes:
            self.label = label if known is None else known
            self.num_votes = 1
        else:
            self.num_votes += 1 if self.label == label else -1
        if self.is_hub:
            return None
        return self.label if self.num_votes >= CLEAR_VOTES else known

    @property
    def is_hub(self) -> bool:
        """Many prefixes continue it, such as a system prompt."""
        return len(self.kids) >= HUB_FROM_KIDS


class TouchTree:
    """Runs by prefix, the least recently used first to go."""

    def __init__(self, survival: Survival, max_blocks: int) -> None:
        self.run_of: dict[int, TouchedRun] = {}
        self._survival = survival
        self._max_blocks = max_blocks
        self._first: dict[int, TouchedRun] = {}
        self._recent: OrderedDict[TouchedRun, None] = OrderedDict()  # oldest first

    def use(self, hashes: Sequence[int], now: float) -> list[TouchedRun]:
        """The runs that make up the prompt, root first, each used once more now."""
        path: list[TouchedRun] = []
        at, kids, parent = 0, self._first, None
        while at < len(hashes):
            run = self._run_at(hashes, at, kids, parent)
            at += len(run.hashes)
            if parent is not None and self._may_join(parent, run):
                self._join(parent, run)
                run = parent
            else:
                path.append(run)
            kids, parent = run.kids, run
        recent = self._recent
        for run in reversed(path):
            run.num_uses += 1
            run.last_used_s = now
            recent[run] = None
            recent.move_to_end(run)
        return path

    def known(self, hashes: Sequence[int]) -> list[tuple[TouchedRun, int]]:
        """The runs that the prompt begins with and how many blocks of each; a use of none."""
        found: list[tuple[TouchedRun, int]] = []
        at = 0
        while at < len(hashes):
            run = self.run_of.get(hashes[at])
            if run is None:
                break
            num = num_common_blocks(run.hashes, hashes, at)
            found.append((run, num))
            at += num
        return found

    def forget(self, before_s: float) -> None:
        """Drop what was not used since, and what exceeds the bound."""
        recent = self._recent
        while recent:
            run = next(iter(recent))
            if run.last_used_s >= before_s and len(self.run_of) <= self._max_blocks:
                return
            del recent[run]
            siblings = self._first if run.parent is None else run.parent.kids
            del siblings[run.hashes[0]]
            for block_hash in run.hashes:
                del self.run_of[block_hash]

    def _run_at(
        self,
        hashes: Sequence[int],
        at: int,
        kids: dict[int, TouchedRun],
        parent: TouchedRun | None,
    ) -> TouchedRun:
        """The run that begins at `at` and has nothing but the prompt's blocks."""
        run = kids.get(hashes[at])
        if run is None:
            return self._add(list(hashes[at:]), parent)
        num_common = num_common_blocks(run.hashes, hashes, at)
        if num_common < len(run.hashes):
            self._split(run, num_common)
        return run

    def _add(self, hashes: list[int], parent: TouchedRun | None) -> TouchedRun:
        run = TouchedRun(hashes, parent)
        siblings = self._first if parent is None else parent.kids
        siblings[hashes[0]] = run
        self.run_of.update(dict.fromkeys(hashes, run))
        return run

    def _split(self, run: TouchedRun, length: int) -> None:
        """`run` keeps its first `length` blocks; the rest becomes a run behind it."""
        tail = TouchedRun(run.hashes[length:], run)
        tail.kids, tail.num_uses, tail.last_used_s = run.kids, run.num_uses, run.last_used_s
        tail.class_id, tail.grants = run.class_id, run.grants.copy()
        tail.label, tail.num_votes = run.label, run.num_votes
        tail.touch = None if run.touch is None else self._survival.copy(run.touch)
        for kid in tail.kids.values():
            kid.parent = tail
        self.run_of.update(dict.fromkeys(tail.hashes, tail))
        run.hashes, run.kids = run.hashes[:length], {tail.hashes[0]: tail}
        self._recent[tail] = None
        self._recent.move_to_end(tail, last=False)

    def _may_join(self, parent: TouchedRun, run: TouchedRun) -> bool:
        return (
            run.num_uses >= JOINED_FROM_USES
            and parent.num_uses >= JOINED_FROM_USES
            and len(parent.kids) == 1
            and run.class_id == parent.class_id
            and run.last_used_s == parent.last_used_s
            and _are_alike(run.grants, parent.grants)
        )

    def _join(self, parent: TouchedRun, run: TouchedRun) -> None:
        parent.hashes = parent.hashes + run.hashes
        parent.kids = run.kids
        for kid in parent.kids.values():
            kid.parent = parent
        self.run_of.update(dict.fromkeys(run.hashes, parent))
        del self._recent[run]
        if run.touch is not None:
            self._survival.drop(run.touch)
        for worker, grant in run.grants.items():
            parent.grants[worker].take_over(grant, len(run.hashes))


def _are_alike(grants: dict[str, Grant], others: dict[str, Grant]) -> bool:
    return grants.keys() == others.keys() and all(
        grant.retention_priority == others[worker].retention_priority
        for worker, grant in grants.items()
    )
